"""SIGTERM: what runs is answered, what comes is refused, what does not end in time is told and kept as cancelled."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.stress.app import note
from tests.stress.load import Told, ask, ask_all, session
from tests.stress.server import Server, alive, body, error_of, missing, recent, stored_failure
from tests.waiting import until

pytestmark = pytest.mark.process

RUNNING = 16


async def _with_sigterm(
    server: Server, journal: Path, requests: list[dict[str, object]], playing: int | None = None
) -> tuple[list[Told], float]:
    """Their answers, SIGTERM being sent once `playing` of them play; and how long the server took to end, in seconds."""
    async with session(server) as client:
        running = [asyncio.create_task(ask(client, request)) for request in requests]
        wanted = len(requests) if playing is None else playing
        await asyncio.to_thread(
            until, lambda: sum(line[0] == "step" for line in note(journal)) >= wanted, 20, "they play"
        )
        await asyncio.to_thread(until, lambda: server.health()["in_flight"] == len(requests), 20, "all in flight")
        server.terminate()
        began = time.monotonic()
        await asyncio.to_thread(until, lambda: server.health()["status"] == "draining", 2, "/health says draining")
        refused = await asyncio.to_thread(server.rollout)
        error = error_of(refused)
        assert (refused.status_code, error["code"]) == (503, "draining")
        assert int(refused.headers["retry-after"]) >= 1
        assert "rollout_id" not in error
        health = await asyncio.to_thread(server.health)
        assert (health["status"], health["in_flight"]) == ("draining", len(requests)), "those that run go on"
        answers = await asyncio.gather(*running)
        await asyncio.to_thread(server.process.wait, 30)
        return answers, time.monotonic() - began


@pytest.mark.ci
@pytest.mark.parametrize("workers", [pytest.param("0", marks=pytest.mark.exhaustive), "2"])
def test_running_rollouts_are_answered_during_drain(tmp_path: Path, workers: str) -> None:
    journal = tmp_path / "journal"
    with Server(tmp_path / "server", "--workers", workers) as server:
        digest = server.rollout(seed=3).json()["digest"]
        processes = server.worker_pids()
        requests = [body(seed=3, slow=0.25, journal=str(journal)) for _ in range(RUNNING)]
        answers, seconds = asyncio.run(_with_sigterm(server, journal, requests))
        assert server.process.returncode == 0
        for pid in processes:
            until(lambda pid=pid: not alive(pid), 5, "its workers ended too")  # type: ignore[misc]
    assert [told.status for told in answers] == [200] * RUNNING
    assert {told.body["digest"] for told in answers} == {digest}
    assert seconds < 10, "it ends when the last is answered, not when the grace is over"
    check, lost = missing(server.store, [told.body["rollout_id"] for told in answers])
    assert (lost, check.ok, check.rollouts) == ([], True, RUNNING + 1)
    assert sum(line[0] == "close" for line in note(journal)) == RUNNING


@pytest.mark.ci
@pytest.mark.parametrize(
    ("workers", "environment"),
    [
        ("2", "shared"),
        pytest.param("0", "shared", marks=pytest.mark.exhaustive),
        pytest.param("0", "alone", marks=pytest.mark.exhaustive),
    ],
)
def test_what_outlasts_the_grace_is_told_and_kept_as_cancelled(tmp_path: Path, workers: str, environment: str) -> None:
    journal = tmp_path / "journal"
    with Server(tmp_path / "server", "--workers", workers, "--grace-seconds", "1") as server:
        warm = asyncio.run(ask_all(server, [body(environment, seed=3, slow=0.02)] * 4))  # every process is there
        requests = [
            body(environment, seed=3, slow=0.6, journal=str(journal), run_id=f"late-{number}") for number in range(6)
        ]
        answers, seconds = asyncio.run(_with_sigterm(server, journal, requests, playing=4))
        assert server.process.returncode == 0
    assert seconds >= 1
    for told in answers:
        assert (told.status, told.error["code"], told.error["boundary"]) == (503, "server_stopping", "cancelled")
        assert int(told.headers["retry-after"]) >= 1
        stored_failure(server.store, told.error)
    assert len(recent(server.store)) == len(warm) + len(answers)
    reset, closed = (sum(line[0] == what for line in note(journal)) for what in ("reset", "close"))
    assert reset == closed, "environments are closed before the server ends"


@pytest.mark.ci
def test_a_thread_that_hangs_does_not_hold_the_server(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with Server(tmp_path / "server", "--grace-seconds", "1") as server:
        request = body(seed=3, breaks="hang for long", journal=str(journal))
        answers, seconds = asyncio.run(_with_sigterm(server, journal, [request]))
        assert server.process.returncode == 0
    (told,) = answers
    assert (told.status, told.error["code"], told.error["boundary"]) == (503, "server_stopping", "cancelled")
    stored_failure(server.store, told.error)
    assert seconds < 60, "it ends long before the thread does"


def test_an_idle_server_ends_at_once(tmp_path: Path) -> None:
    with Server(tmp_path / "server", "--workers", "1") as server:
        processes = server.worker_pids()
        assert processes
        assert server.stop() == 0
        assert not [pid for pid in processes if alive(pid)]
    assert "Traceback" not in server.log()
