"""The apps of docs/environments/gallery.md are short, play, and pass the doctor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from taskapp_kit.declare.discovery import find_app
from taskapp_kit.testing import play
from tests.machine import skip_if_it_cannot_play

ROOT = Path(__file__).resolve().parents[2]
APPS = sorted((ROOT / "examples" / "gallery").glob("*.py"))
PAGE = (ROOT / "docs" / "environments" / "gallery.md").read_text("utf-8")
PACKAGES = {"balance": "gymnasium", "odd_square": "numpy"}


def skip_without_what_it_needs(path: Path) -> None:
    if package := PACKAGES.get(path.stem):
        pytest.importorskip(package)
    skip_if_it_cannot_play(path.stem)


@pytest.mark.parametrize("path", APPS, ids=lambda path: path.stem)
def test_an_app_is_short_and_on_the_page_with_an_image(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) <= 60
    assert f"examples/gallery/{path.name}" in PAGE
    image = next(iter((ROOT / "docs/images/gallery").glob(f"{path.stem}.*")))
    assert f"images/gallery/{image.name}" in PAGE
    assert image.stat().st_size <= 400_000


@pytest.mark.parametrize(
    "path", [path for path in APPS if 'policy("gold")' in path.read_text("utf-8")], ids=lambda p: p.stem
)
def test_gold_earns_nearly_everything(path: Path) -> None:
    skip_without_what_it_needs(path)
    app = find_app(str(path))
    rollouts = [play(app, seed=seed, policy="gold") for seed in (0, 1)]
    assert all(rollout.reward is not None and rollout.reward > 0.7 for rollout in rollouts)
    assert play(app, seed=0, policy="gold").digest == rollouts[0].digest


@pytest.mark.ci
@pytest.mark.process
@pytest.mark.parametrize("path", APPS, ids=lambda path: path.stem)
def test_the_doctor_finds_nothing(path: Path, tmp_path: Path) -> None:
    skip_without_what_it_needs(path)
    command = [sys.executable, "-m", "taskapp_kit", "doctor", str(path), "--quick"]
    examined = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert examined.returncode == 0, examined.stdout + examined.stderr
