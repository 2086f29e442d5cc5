"""kill -9 inside a save, at moments from a seed: no checkpoint is lost, and the job ends as if it was never killed."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from taskapp_kit.train.checkpoints.stored import latest_checkpoint, read_checkpoint
from taskapp_kit.train.checkpoints.writer import UNFINISHED
from tests.waiting import until

pytestmark = pytest.mark.process

HERE = Path(__file__).parent
SIZE = 12_000_000
"""Bytes of a checkpoint."""


def started(root: Path, iterations: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(HERE / "saving_job.py"), str(root), str(iterations)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=HERE)


def size(folder: Path) -> int:
    try:
        return sum(file.stat().st_size for file in folder.iterdir())
    except FileNotFoundError:
        return SIZE  # not begun; or renamed, file by file gone


def wait_for(process: subprocess.Popen[str], root: Path, name: str, moment: float) -> None:
    """Return when so many bytes of a checkpoint are there, or all of it."""
    unfinished, place = root / f"{UNFINISHED}{name}", root / name
    until(lambda: unfinished.exists() or place.exists() or process.poll() is not None)
    while unfinished.exists() and size(unfinished) < moment:
        pass


def kill_in_a_save(root: Path, iterations: int, random: Random) -> tuple[int, bool]:
    """Kill a job during one of its first saves; return the last that it finished before, and whether one was cut."""
    complete, moment = random.randint(0, 1), random.uniform(0, 1) * SIZE
    saved = 0
    with started(root, iterations) as process:
        assert process.stdout is not None
        for line in process.stdout:
            word, _, number = line.strip().partition(" ")
            assert word in ("saving", "saved"), "the job has ended before it was killed often enough"
            if word == "saved":
                saved, complete = int(number), complete - 1
            elif complete <= 0:
                wait_for(process, root, f"checkpoint-{number}", moment)
                break
        process.kill()
    return saved, any(path.name.startswith(UNFINISHED) for path in root.iterdir())


@pytest.mark.ci
@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.exhaustive)])
def test_a_killed_job_ends_as_one_that_was_not(tmp_path: Path, caplog: pytest.LogCaptureFixture, kills: int) -> None:
    iterations, random = 2 * kills + 8, Random(kills)
    with started(tmp_path / "whole", iterations) as process:
        expected = process.communicate()[0].splitlines()[-1]

    root, cut, before = tmp_path / "killed", 0, 0
    while cut < kills:
        saved, inside = kill_in_a_save(root, iterations, random)
        cut += inside
        with caplog.at_level(logging.WARNING):
            latest = latest_checkpoint(root)
        # None is torn, not even to be skipped. A server of an earlier test may still be logging.
        assert not [record for record in caplog.records if record.name == "taskapp_kit.train"]
        iteration = latest.facts.position.iteration if latest else 0
        assert iteration >= max(saved, before)
        for path in root.iterdir():
            if not path.name.startswith("."):
                read_checkpoint(path)
        before = iteration
    with started(root, iterations) as process:
        assert process.communicate()[0].splitlines()[-1] == expected
    kept = {path.name for path in root.iterdir()} - {".lock"}
    assert kept == {f"checkpoint-{number}" for number in (1, iterations - 1, iterations)}
