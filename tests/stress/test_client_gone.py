"""Callers that hang up: their rollouts stop, their environments are closed, the store says cancelled; within a second."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.stress.app import note
from tests.stress.load import Cut, ask_all, cut, send
from tests.stress.server import Server, body, recent
from tests.waiting import until

pytestmark = [pytest.mark.ci, pytest.mark.process, pytest.mark.server]

CALLERS = 8


FIRST = {("threads", "shared", "close"), ("threads", "alone", "reset"), ("workers", "shared", "reset")}
CASES = [
    pytest.param(
        place, environment, playing, how, marks=() if (place, environment, how) in FIRST else pytest.mark.exhaustive
    )
    for place in ("threads", "workers")
    for environment, playing in (("shared", CALLERS), ("alone", 4))
    for how in ("close", "reset")
]


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Server:
    """The one that the parameter names."""
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.mark.parametrize(("server", "environment", "playing", "how"), CASES, indirect=["server"])
def test_disconnected_rollouts_are_cancelled(
    server: Server, environment: str, playing: int, how: Cut, tmp_path: Path
) -> None:
    """Of those with a process of their own, four at least play at once; the others are cancelled in line."""
    journal = tmp_path / "journal"
    warm = asyncio.run(ask_all(server, [body(environment, seed=3, slow=0.02)] * playing))  # every process is there
    digest = server.rollout(environment=environment, seed=3).json()["digest"]
    assert {told.body["digest"] for told in warm} == {digest}
    before = {row.rollout_id for row in recent(server.store)}

    async def hang_up() -> None:
        requests = [
            body(environment, seed=3, slow=0.5, journal=str(journal), run_id=f"gone-{number}")
            for number in range(CALLERS)
        ]
        callers = [await send(server, request) for request in requests]
        await asyncio.to_thread(until, lambda: _lines(journal, "step") >= playing, 10, "all play")
        await asyncio.to_thread(until, lambda: server.health()["in_flight"] == CALLERS, 10, "all are in flight")
        for caller in callers:
            cut(caller, how)

    asyncio.run(hang_up())
    until(lambda: server.health()["in_flight"] == 0, 10, "no rollout in flight")
    until(lambda: _lines(journal, "close") == _lines(journal, "reset"), 10, "every environment closed")
    rows = [row for row in recent(server.store) if row.rollout_id not in before]
    assert sorted(row.run_id for row in rows) == [f"gone-{number}" for number in range(CALLERS)]
    for row in rows:
        assert (row.status, row.failure["boundary"], row.failure["code"]) == ("failed", "cancelled", "cancelled")
        assert (row.reward, row.digest) == (None, None)
        assert row.length < 6
    health = server.health()
    assert (health["healthy"], health["status"], health["hung_threads"]) == (True, "healthy", 0)
    assert server.rollout(environment=environment, seed=3).json()["digest"] == digest


def _lines(journal: Path, what: str) -> int:
    return sum(line[0] == what for line in note(journal))
