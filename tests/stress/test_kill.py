"""kill -9 in the middle of everything: what was answered 200 is in the store, whole, and no worker is left behind.

TASKAPP_STRESS_ROUNDS sets the number of rounds of the longer test (the acceptance has 20).
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import aiohttp
import pytest

from tests.stress.load import ask, session
from tests.stress.server import Server, alive, all_stored, body, missing, stored
from tests.waiting import until

pytestmark = [pytest.mark.ci, pytest.mark.process]

ROUNDS = int(os.environ.get("TASKAPP_STRESS_ROUNDS", "5"))
CALLERS = 16


@pytest.mark.parametrize("rounds", [2, pytest.param(ROUNDS, marks=pytest.mark.exhaustive)])
def test_what_was_answered_survives_kill_9(tmp_path: Path, rounds: int) -> None:
    """One store through all rounds; the server starts on what the last kill left. Odd rounds have two workers."""
    chance = random.Random(20)
    answered: dict[str, str] = {}
    folder = tmp_path / "server"
    for turn in range(rounds):
        workers = "2" if turn % 2 else "0"
        with Server(folder, "--workers", workers) as server:
            if answered:
                _replayed(server, *chance.choice(list(answered.items())))
            told = asyncio.run(_load_until_killed(server, chance))
        for pid in told.workers:
            until(lambda pid=pid: not alive(pid), 5, f"worker {pid} ended with its front")  # type: ignore[misc]
        assert len(told.digests) > 0, "some were answered before the kill"
        assert not answered.keys() & told.digests.keys()
        answered |= told.digests
        check, lost = missing(server.store, answered)
        assert lost == []
        assert check.ok, check
        assert check.rollouts >= len(answered)
    assert [row.digest for row in all_stored(server.store, answered)] == list(answered.values())
    with Server(folder) as server:
        _replayed(server, *chance.choice(list(answered.items())))


class _Told:
    """What a round's callers were told until the server was killed."""

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}
        self.workers: list[int] = []


async def _load_until_killed(server: Server, chance: random.Random) -> _Told:
    told = _Told()
    seconds = chance.uniform(0.2, 0.9)

    async def caller(number: int) -> None:
        seed = number
        while True:
            seed = (seed + CALLERS) % 1000
            environment = "alone" if number == 0 else "shared"
            try:
                request = body(
                    environment, seed=seed, policy="random", image=number % 3 == 0, slow=0.002 * (number % 5)
                )
                answer = await ask(client, request)
            except (aiohttp.ClientError, ConnectionError):
                return
            assert answer.status == 200, answer.body
            told.digests[answer.body["rollout_id"]] = answer.body["digest"]

    async with session(server) as client:
        callers = [asyncio.create_task(caller(number)) for number in range(CALLERS)]
        await asyncio.sleep(seconds)
        told.workers = server.worker_pids()
        server.kill()
        await asyncio.gather(*callers)
    return told


def _replayed(server: Server, rollout_id: str, digest: str) -> None:
    """A rollout that an earlier server answered is played again from the store of this one."""
    kept = stored(server.store, rollout_id)
    request = body(kept.environment, seed=kept.seed, **kept.config)
    request["policy"] = {"config": {"policy": "replay", "rollout_id": rollout_id}}
    assert server.post(request).json()["digest"] == digest
