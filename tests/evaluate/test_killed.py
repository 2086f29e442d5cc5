"""kill -9 at random moments, in small: 40 rollouts of a real `taskapp eval`, killed until they are there."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process

FLAKY = str(Path(__file__).parent / "flaky.py")
SECONDS = 120.0


def command(out: Path, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "taskapp_kit", "eval", FLAKY, "--policy", "presser", "--seeds", "0-19", "--repeats", "2",
        "--config", '{"pause": 0.04}', "--concurrency", "2", "--out", str(out), *more,
    ]  # fmt: skip


def lines(out: Path) -> int:
    results = out / "results.jsonl"
    return results.read_bytes().count(b"\n") if results.exists() else 0


def started(out: Path, *more: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command(out, *more),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=out.parent,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 — a shell's child ignores it
    )


def wait_for(process: subprocess.Popen[bytes], out: Path, count: int) -> None:
    """Until so many results are there, or it has ended."""
    end = time.monotonic() + SECONDS
    while lines(out) < count and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The summary of the same evaluation, never killed."""
    out = tmp_path_factory.mktemp("whole") / "out"
    subprocess.run(command(out), check=False, capture_output=True, cwd=out.parent)
    return json.loads((out / "summary.json").read_text())


@pytest.mark.ci
@pytest.mark.parametrize("workers", [pytest.param("0", marks=pytest.mark.exhaustive), "1"])
def test_nothing_is_lost_and_nothing_doubled(tmp_path: Path, workers: str, whole: Any) -> None:
    out, rng, kills = tmp_path / "out", random.Random(7), 0
    while kills < 3:
        process = started(out, "--resume", "--workers", workers)
        before = lines(out)
        if kills == 0:
            time.sleep(rng.uniform(0, 0.4))  # perhaps before anything is there
        else:
            wait_for(process, out, before + rng.randint(1, 6))
            time.sleep(rng.uniform(0, 0.05))
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        process.kill()
        process.communicate()
        kills += 1
        assert lines(out) >= before
    left = lines(out)
    assert 0 < left < 40
    ended = subprocess.run(
        command(out, "--resume", "--workers", workers), check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert ended.returncode == 1, ended.stderr  # 8 of the rollouts fail
    assert f"{left} rollouts were played before" in ended.stderr
    told = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    keys = Counter((item["key"]["seed"], item["key"]["sample"]) for item in told)
    assert keys == Counter((seed, sample) for seed in range(20) for sample in range(2))

    broken = json.loads((out / "summary.json").read_text())
    assert broken.pop("timing") != whole["timing"]
    assert json.dumps(broken) == json.dumps({name: value for name, value in whole.items() if name != "timing"})


def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = started(out)
    wait_for(process, out, 3)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert b"Stopped." in told
    assert b"of 40 rollouts are stored" in told
    assert f"`taskapp eval {out}`".encode() in told
    assert b"Traceback" not in told
    kept = lines(out)
    assert f"{kept} of 40".encode() in told
    assert not (out / "summary.json").exists()
    goes_on = [sys.executable, "-m", "taskapp_kit", "eval", str(out)]
    again = subprocess.run(goes_on, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert f"{kept} rollouts were played before" in again.stderr
    assert lines(out) == 40
