"""Twice as many callers as places: what is answered is right, the others are told when to come again."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.stress.load import Told, ask, session
from tests.stress.server import Server, body

pytestmark = [pytest.mark.ci, pytest.mark.process]

PLACES = 16
SECONDS = 3.0
STEP_SECONDS = 0.05
SEEDS = range(40)


@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.exhaustive)])
def test_overload_is_rejected_with_retry_after(tmp_path: Path, workers: str) -> None:
    with Server(tmp_path / "server", "--max-concurrent", str(PLACES), "--workers", workers) as server:
        digests = {seed: server.rollout(seed=seed).json()["digest"] for seed in SEEDS}
        answers = asyncio.run(_overload(server))
        server.idle()
        assert {seed: server.rollout(seed=seed).json()["digest"] for seed in SEEDS} == digests
    good = [(seed, told) for seed, told in answers if told.status == 200]
    refused = [told for _, told in answers if told.status != 200]
    for seed, told in good:
        assert told.body["digest"] == digests[seed]
    for told in refused:
        assert (told.status, told.error["code"]) == (503, "saturated")
        assert int(told.headers["retry-after"]) >= 1
        assert "rollout_id" not in told.error, "it never began"
    assert len(good) > PLACES * 3, "the places were used"
    assert len(refused) > PLACES, "there were more callers than places"


async def _overload(server: Server) -> list[tuple[int, Told]]:
    """Every caller's answers with their seeds; `/health` is asked all the time."""
    answers: list[tuple[int, Told]] = []
    end = time.monotonic() + SECONDS

    async with session(server) as client, session(server) as watcher:

        async def caller(number: int) -> None:
            turn = number
            while time.monotonic() < end:
                seed = SEEDS[turn % len(SEEDS)]
                turn += 7
                told = await ask(client, body(seed=seed, slow=STEP_SECONDS))
                answers.append((seed, told))
                if told.status != 200:
                    await asyncio.sleep(STEP_SECONDS)  # it is told to wait a second, and does not

        async def watch() -> None:
            while time.monotonic() < end:
                async with watcher.get("/health") as answer:
                    told = await answer.json()
                assert (answer.status, told["healthy"]) == (200, True)
                assert 0 <= told["in_flight"] <= PLACES
                await asyncio.sleep(0.02)

        await asyncio.gather(watch(), *(caller(number) for number in range(2 * PLACES)))
    return answers
