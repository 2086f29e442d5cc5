"""Building peers' environments: once, by whoever comes first, and never taken for finished before it is."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.interop import peers

PROGRAM = Path(peers.__file__)
pytestmark = pytest.mark.interop


def build(directory: Path, name: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """`peers.py NAME` in a process of its own, with `directory` as the place of the module."""
    program = directory / PROGRAM.name
    program.write_text(PROGRAM.read_text())
    variables = {**os.environ, peers.CACHE_VARIABLE: str(cache)}
    command = [sys.executable, str(program), name]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)


def requirements(directory: Path, name: str, lines: str) -> None:
    (directory / "requirements").mkdir(exist_ok=True)
    (directory / "requirements" / f"{name}.txt").write_text(lines)


def test_built_once_by_two_at_the_same_time_and_then_found(tmp_path: Path) -> None:
    requirements(tmp_path, "small", "idna==3.11\n")
    cache = tmp_path / "cache"
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: build(tmp_path, "small", cache), range(2))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert first.stdout == second.stdout
    assert sorted("built in" in done.stderr for done in (first, second)) == [False, True], "one builds, the other finds"
    python = first.stdout.strip()
    seen = subprocess.run([python, "-c", "import idna; print(idna.__version__)"], capture_output=True, check=True)
    assert seen.stdout == b"3.11\n"

    requirements(tmp_path, "small", "idna==3.10\n")
    changed = build(tmp_path, "small", cache)
    assert changed.returncode == 0, changed.stderr
    assert changed.stdout.strip() != python, "another pin is another environment"


def test_a_broken_off_build_is_not_taken_for_an_environment(tmp_path: Path) -> None:
    requirements(tmp_path, "small", "idna==3.11\n")
    cache = tmp_path / "cache"
    python = Path(build(tmp_path, "small", cache).stdout.strip())
    (python.parents[1] / peers.MARKER).unlink()
    (python.parents[1] / "left-over").touch()
    again = build(tmp_path, "small", cache)
    assert again.returncode == 0, again.stderr
    assert "built in" in again.stderr
    assert not (python.parents[1] / "left-over").exists()


def test_an_unknown_peer_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    requirements(tmp_path, "small", "idna==3.11\n")
    refused = build(tmp_path, "smal", tmp_path / "cache")
    assert refused.returncode == 1
    assert "'smal'" in refused.stderr
    assert "small" in refused.stderr


def test_pins_that_nobody_can_have_fail_with_a_sentence_and_leave_nothing(tmp_path: Path) -> None:
    requirements(tmp_path, "impossible", "idna==0.0.0.1\n")
    refused = build(tmp_path, "impossible", tmp_path / "cache")
    assert refused.returncode == 1
    assert "The environment of impossible" in refused.stderr
    assert "idna" in refused.stderr
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
