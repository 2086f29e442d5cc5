"""What is written holds conversations: only its owner reads it, whatever the umask says."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import ADDER, clean_environ

pytestmark = pytest.mark.process


def modes(folder: Path) -> dict[str, int]:
    return {path.relative_to(folder).as_posix(): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


@pytest.mark.parametrize(
    "args",
    [
        pytest.param(
            ("eval", ADDER, "--policy", "gold", "--seeds", "0-1", "--out", "runs/first"), marks=pytest.mark.exhaustive
        ),
        ("rollout", ADDER, "--policy", "gold", "--out", "answer.json", "--store", "sqlite:///kept/here/rollouts.db"),
    ],
)
def test_results_and_stores_are_their_owners_alone(tmp_path: Path, args: tuple[str, ...]) -> None:
    command = [sys.executable, "-P", "-m", "taskapp_kit", *args]
    environ = clean_environ(TASKAPP_STORE="")
    done = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False,
        preexec_fn=lambda: os.umask(0),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = modes(tmp_path)
    assert len(found) > 2
    assert {name: oct(mode) for name, mode in found.items() if mode & 0o077} == {}
