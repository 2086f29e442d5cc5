"""A step that ends its process: it costs the rollouts in that process, typed, and nobody else's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stress.app import note
from tests.stress.server import Server, alive, error_of, stored_failure
from tests.waiting import until

pytestmark = pytest.mark.process

LONG = 3
DEATHS = ("segfault", "abort", "exit", "exit 0", "kill itself", "close all files")
FIRST = {("shared", "segfault"), ("shared", "exit 0"), ("shared", "close all files"), ("alone", "kill itself")}
CASES = [
    pytest.param(environment, breaks, marks=() if (environment, breaks) in FIRST else pytest.mark.exhaustive)
    for environment in ("shared", "alone")
    for breaks in DEATHS
]


@pytest.mark.ci(keep=1)
@pytest.mark.parametrize(("environment", "breaks"), CASES)
def test_a_crash_is_a_typed_failure_and_the_process_is_replaced(
    workers: Server, environment: str, breaks: str, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    digest = workers.rollout(environment=environment, seed=LONG).json()["digest"]
    replaced = workers.health()["workers"]["replaced"]
    answer = workers.rollout(
        environment=environment, seed=LONG, breaks=breaks, journal=str(journal), timeout_seconds=10
    )
    error = error_of(answer)
    assert (answer.status_code, error["boundary"], error["code"]) == (500, "environment", "worker_died")
    assert workers.rollout(environment=environment, seed=LONG).json()["digest"] == digest, "at once"
    assert workers.health()["healthy"] is True
    assert workers.health()["workers"]["replaced"] == replaced + 1
    (pid,) = {int(line[2]) for line in note(journal)}
    until(lambda: not alive(pid), 5, "the process is dead")
    kept = stored_failure(workers.store, error)
    if environment == "alone":
        assert kept.length == 1, "what was told until the crash is kept"
        assert [event["kind"] for event in kept.events].count("acted") == 2
    assert f"error_id={error['error_id']}" in workers.log()
