"""Callers that cut their connection after a few milliseconds, hundreds of them, leave nothing behind."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.stress.load import cut, send
from tests.stress.server import Server, body, recent
from tests.waiting import until

pytestmark = [pytest.mark.ci, pytest.mark.process]

WARM_UP, AT_ONCE = 200, 32
RSS_BYTES, DESCRIPTORS = 15 * 2**20, 8
THREADS, OTHER_THREADS = 64, 30
"""Of one process that plays, and of all processes for anything else: a thread lost with each rollout would be hundreds."""


@dataclass
class Footprint:
    """Of the front and its workers together."""

    rss_bytes: int
    descriptors: int
    threads: int


@pytest.mark.parametrize(
    ("workers", "aborted"),
    [
        ("2", 250),
        pytest.param("0", 1000, marks=pytest.mark.exhaustive),
        pytest.param("2", 1000, marks=pytest.mark.exhaustive),
    ],
)
def test_aborted_rollouts_leave_memory_and_descriptors_flat(tmp_path: Path, workers: str, aborted: int) -> None:
    with Server(tmp_path / "server", "--workers", workers) as server:
        digest = server.rollout(seed=3).json()["digest"]
        _abort(server, WARM_UP, 2 * AT_ONCE)  # more at once than later: every thread that is needed is there
        before = _settled(server)
        _abort(server, aborted, AT_ONCE)
        after = _settled(server)
        kept = recent(server.store)
        cancelled = [row for row in kept if row.failure is not None]
        assert after.rss_bytes - before.rss_bytes < RSS_BYTES
        assert abs(after.descriptors - before.descriptors) <= DESCRIPTORS
        assert after.threads <= THREADS * max(1, int(workers)) + OTHER_THREADS
        health = server.health()
        assert (health["in_flight"], health["hung_threads"], health["status"]) == (0, 0, "healthy")
        if workers != "0":
            assert (health["workers"]["waiting"], health["workers"]["killed"], health["workers"]["hung"]) == (0, 0, 0)
        assert {row.failure["code"] for row in cancelled if row.failure is not None} == {"cancelled"}
        assert len(cancelled) == WARM_UP + aborted, "each was cut while it ran, and is kept as cancelled"
        assert server.rollout(seed=3).json()["digest"] == digest


def _abort(server: Server, number: int, at_once: int) -> None:
    """So many callers, each gone 0 to 30 ms after it asked for a rollout of 0.9 s. Its place is taken anew 0.1 s later."""
    chance = random.Random(number)

    async def main() -> None:
        places = asyncio.Semaphore(at_once)

        async def caller() -> None:
            async with places:
                writer = await send(server, body(seed=3, slow=0.15))
                await asyncio.sleep(chance.uniform(0, 0.03))
                cut(writer, chance.choice(["close", "reset"]))
                await asyncio.sleep(0.1)  # the server looks after 0.1 s whether a caller is there still

        await asyncio.gather(*(caller() for _ in range(number)))

    asyncio.run(main())


def _settled(server: Server) -> Footprint:
    """What the server holds once nothing runs and its connections are gone."""
    server.idle()
    seen: list[tuple[int, int]] = []

    def steady() -> bool:
        seen.append((server.fds(), server.threads()))
        return len(seen) > 20 and len(set(seen[-20:])) == 1

    until(steady, 10, "descriptors and threads come to rest")
    return Footprint(server.rss_bytes(), *seen[-1])
