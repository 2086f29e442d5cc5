"""A step that does not come back: a typed timeout, and a server that goes on."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.stress.app import note
from tests.stress.load import ask_all
from tests.stress.server import Server, alive, body, error_of, stored_failure
from tests.waiting import until

pytestmark = [pytest.mark.ci, pytest.mark.process]

LONG = 3


def test_threads_that_hang_are_given_up_and_counted(threads: Server) -> None:
    """One sleeps, one computes, one does not come back from close."""
    digest = threads.rollout(seed=LONG).json()["digest"]
    steps = {"hang": 1, "spin": 1, "close hangs": 6}
    answers = asyncio.run(ask_all(threads, (body(seed=LONG, breaks=what, max_time_seconds=0.3) for what in steps)))
    health = threads.health()
    assert (health["healthy"], health["status"], health["hung_threads"]) == (True, "healthy", 3)
    assert threads.rollout(seed=LONG).json()["digest"] == digest
    for told, length in zip(answers, steps.values(), strict=True):
        assert (told.status, told.error["boundary"], told.error["code"]) == (504, "timeout", "environment_hung")
        assert told.seconds > 0.3, "not before the deadline"
        assert stored_failure(threads.store, told.error).length == length, "what was told until the hang is kept"
        assert f"error_id={told.error['error_id']}" in threads.log()
    until(lambda: threads.health()["hung_threads"] == 0, 10, "the threads came back after all")
    assert threads.rollout(seed=LONG).json()["digest"] == digest


@pytest.mark.parametrize(
    ("environment", "breaks"),
    [
        ("shared", "hang in C"),
        ("alone", "hang"),
        *(
            pytest.param(environment, breaks, marks=pytest.mark.exhaustive)
            for environment, breaks in (
                ("shared", "hang"), ("shared", "spin"), ("alone", "hang in C"), ("alone", "spin"),
            )
        ),
    ],
)  # fmt: skip
def test_a_process_that_hangs_is_replaced(workers: Server, environment: str, breaks: str, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    digest = workers.rollout(environment=environment, seed=LONG).json()["digest"]
    counted = workers.health()["workers"]
    began = time.monotonic()
    answer = workers.rollout(environment=environment, seed=LONG, breaks=breaks, journal=str(journal))
    seconds = time.monotonic() - began
    error = error_of(answer)
    assert (answer.status_code, error["boundary"], error["code"]) == (504, "timeout", "step_timeout")
    assert seconds > 1
    (pid,) = {int(line[2]) for line in note(journal)}
    until(lambda: not alive(pid), 10, "the process that hung is dead")
    assert workers.rollout(environment=environment, seed=LONG).json()["digest"] == digest
    until(lambda: workers.health()["workers"]["alive"] >= counted["alive"], 10, "another process in its place")
    health = workers.health()
    assert (health["healthy"], health["status"]) == (True, "healthy")
    assert health["workers"]["hung"] == counted["hung"] + 1
    assert health["workers"]["replaced"] == counted["replaced"] + 1
    kept = stored_failure(workers.store, error)
    if environment == "alone":
        assert kept.length == 1, "what was told until the hang is kept"
