"""Nothing that a policy writes pays, except a solution; and whoever plays beside it or after it notices nothing."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from environments.python_sandbox.boxes import Boxes
from taskapp_kit.grading import code as grading_code
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.sandbox.folder import PREFIX
from tests.environments.python_sandbox.cheats import CHEATS
from tests.environments.python_sandbox.episodes import (
    app_at,
    app_with,
    body,
    play,
    run,
    seed_of,
    shares,
    shown,
    submit,
)
from tests.sandbox.boxes import LEVELS

pytestmark = pytest.mark.process

SPLIT, SEED, TASK = seed_of("mirror-digits")
WALLED = {
    "reward files", "start-up files", "links where files are to be", "daemon", "forged answers", "closed descriptors", "crash",
    "searching memory, processes and files", "killing the judge", "killing everybody", "network", "environment and secrets",
    "no source",
}  # fmt: skip
"""Those that the level makes a difference to; below the strongest only they are tried."""
PAIRS = [(level, name) for level in LEVELS for name in CHEATS if level == max(LEVELS) or name in WALLED]
EACH = [
    pytest.param(level, name, marks=() if level == max(LEVELS) else pytest.mark.exhaustive) for level, name in PAIRS
]


@cache
def played(level: int) -> dict[str, Rollout]:
    """Every cheat, all of them at once, with an honest rollout after every fourth."""
    app = app_at(level)
    names, requests = [], []
    for number, (name, (programs, submission, _)) in enumerate(CHEATS.items()):
        if (level, name) not in PAIRS:
            continue
        names.append(name)
        requests.append(body([*map(run, programs), submit(submission)], seed=SEED, split=SPLIT))
        if len(requests) % 4 == 0:
            names.append(f"honest {number}")
            requests.append(body([run("print(1)"), submit(TASK.reference)], seed=SEED, split=SPLIT))
    return dict(zip(names, play(app, *requests), strict=True))


@pytest.mark.ci
@pytest.mark.parametrize(("level", "name"), EACH)
def test_no_cheat_pays(level: int, name: str) -> None:
    rollout = played(level)[name]
    assert rollout.scorecard.reward == 0.0
    assert rollout.trajectory.status == "terminated"
    found = set(rollout.trajectory.final_state["outcomes"])
    assert len(rollout.trajectory.final_state["outcomes"]) == len(TASK.hidden_tests)
    assert found <= CHEATS[name][2]
    assert shown(rollout)[-1] == "submitted"
    unsolved = played(level)["no source"]
    assert rollout.scorecard.outcome_score == unsolved.scorecard.outcome_score == 0.0
    assert shares(rollout) == 0.0


def test_concurrent_honest_rollouts_are_rewarded(level: int) -> None:
    honest = [rollout for name, rollout in played(level).items() if name.startswith("honest")]
    assert len(honest) > 1
    assert all(rollout.scorecard.reward == 1.0 and shares(rollout) == 1.0 for rollout in honest)
    assert len({rollout.digest for rollout in honest}) == 1


def test_and_so_is_the_next_one(level: int) -> None:
    played(level)
    (rollout,) = play(app_at(level), body(seed=SEED, split=SPLIT))
    assert rollout.scorecard.reward == 1.0


def test_run_reads_no_secret_and_has_no_network(level: int) -> None:
    seen = shown(played(level)["environment and secrets"])[0]
    assert "ENVIRONMENT" not in seen
    assert "root:" not in seen
    assert "Error" in seen
    assert "Error" in shown(played(level)["network"])[0]
    assert "expected" not in shown(played(level)["searching memory, processes and files"])[0].replace("'expected'", "")


def test_a_right_answer_with_one_line_more_is_not_paid(level: int) -> None:
    """What the judge's program cannot have said spoils the verdict, whoever said it."""
    extra = """
import os
for pid in filter(str.isdigit, os.listdir("/proc")):
    for number in range(16):
        try:
            if "pipe" in os.readlink(f"/proc/{pid}/fd/{number}"):
                with open(f"/proc/{pid}/fd/{number}", "wb", buffering=0) as file:
                    file.write(b'0 ["value", 0]\\n')
        except OSError:
            pass
"""
    (rollout,) = play(app_at(level), body([submit(extra + TASK.reference)], seed=SEED, split=SPLIT))
    assert rollout.scorecard.reward == 0.0


@pytest.mark.ci
def test_waiting_interpreter_is_ended(level: int) -> None:
    app = app_with(Boxes(level, judge_limits=replace(grading_code.LIMITS, wall_seconds=3)))
    lines = (
        "import time; time.sleep(600)",
        "import os, signal; os.kill(os.getppid(), signal.SIGSTOP); time.sleep(600)",
    )
    waiting = [f"def mirror_digits(number):\n    {line}\n" for line in lines]
    *found, honest = play(
        app,
        *(body([submit(submission)], seed=SEED, split=SPLIT) for submission in waiting),
        body(seed=SEED, split=SPLIT),
    )
    assert [rollout.scorecard.reward for rollout in found] == [0.0, 0.0]
    assert [set(rollout.trajectory.final_state["outcomes"]) for rollout in found] == [{"missing"}] * 2
    assert honest.scorecard.reward == 1.0


def test_nothing_of_them_is_left(level: int) -> None:
    played(level)
    held = [path for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*") if (path / "files" / "reward.txt").exists()]
    assert not held
