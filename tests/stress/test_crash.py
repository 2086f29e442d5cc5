"""A step that ends its process: it costs the rollouts in that process, typed, and nobody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.stress.app import note
from tests.stress.load import Told, ask, session, until_shared_by
from tests.stress.server import Server, alive, body, error_of, stored_failure
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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("crash"), "--workers", "2") as running:
        yield running


@pytest.mark.ci(keep=1)
@pytest.mark.parametrize(("environment", "breaks"), CASES)
def test_a_crash_is_a_typed_failure_and_the_process_is_replaced(
    server: Server, environment: str, breaks: str, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    digest = server.rollout(environment=environment, seed=LONG).json()["digest"]
    replaced = server.health()["workers"]["replaced"]
    answer = server.rollout(environment=environment, seed=LONG, breaks=breaks, journal=str(journal), timeout_seconds=10)
    error = error_of(answer)
    assert (answer.status_code, error["boundary"], error["code"]) == (500, "environment", "worker_died")
    assert server.rollout(environment=environment, seed=LONG).json()["digest"] == digest, "at once"
    assert server.health()["healthy"] is True
    assert server.health()["workers"]["replaced"] == replaced + 1
    (pid,) = {int(line[2]) for line in note(journal)}
    until(lambda: not alive(pid), 5, "the process is dead")
    kept = stored_failure(server.store, error)
    if environment == "alone":
        assert kept.length == 1, "what was told until the crash is kept"
        assert [event["kind"] for event in kept.events].count("acted") == 2
    assert f"error_id={error['error_id']}" in server.log()


@pytest.mark.ci
def test_a_crash_costs_only_those_in_the_same_process(server: Server, tmp_path: Path) -> None:
    until_shared_by(server, 2, tmp_path / "probes")
    journal = tmp_path / "journal"
    digests = {name: server.rollout(environment=name, seed=LONG).json()["digest"] for name in ("shared", "alone")}
    marks = {**{f"companion-{number}": "shared" for number in range(12)}, "companion-alone": "alone"}
    given: dict[str, Any] = {"seed": LONG, "journal": str(journal)}

    async def together() -> list[Told]:
        async with session(server) as client:
            companions = [
                asyncio.create_task(ask(client, body(environment, slow=0.15, mark=mark, **given)))
                for mark, environment in marks.items()
            ]
            await asyncio.to_thread(until, lambda: len(note(journal)) >= 2 * len(marks), 10, "the companions play")
            crashed = await ask(client, body(breaks="segfault", mark="crash", **given))
            return [*await asyncio.gather(*companions), crashed]

    answers = asyncio.run(together())
    where = {line[3]: line[2] for line in note(journal)}
    fates = {"lost": 0, "right": 0}
    for mark, told in zip([*marks, "crash"], answers, strict=True):
        if where[mark] == where["crash"]:
            assert (told.status, told.error["boundary"], told.error["code"]) == (500, "environment", "worker_died")
            fates["lost"] += 1
        else:
            assert (told.status, told.body["digest"]) == (200, digests[marks[mark]])
            fates["right"] += 1
    assert fates == {"lost": 7, "right": 7}, "the rollouts are spread evenly over two processes, and one is alone"
    until_shared_by(server, 2, tmp_path / "probes")
    assert server.rollout(seed=LONG).json()["digest"] == digests["shared"]
