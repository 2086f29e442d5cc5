"""How often a request is repeated, and after which pauses."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise

import pytest

from taskapp_kit.net.http import HttpResponse, NoAnswer, Trouble
from taskapp_kit.net.retry import JITTER, Attempts, Backoff, again

GROWING = Backoff(first_seconds=1.0, longest_seconds=30.0)


def test_pauses_grow_to_the_longest_and_start_again_after_a_success() -> None:
    attempts = Attempts(GROWING, rng=random.Random(1))
    pauses = [attempts.pause() or 0.0 for _ in range(100)]
    for pause, grown in zip(pauses, [1, 2, 4, 8, 16, *[30] * 95], strict=True):
        assert JITTER[0] * grown <= pause <= JITTER[1] * grown
    attempts.reset()
    assert (attempts.pause() or 99) < 2
    assert any(first != second for first, second in pairwise(pauses[5:]))


def test_a_server_may_ask_for_a_longer_pause_up_to_the_longest() -> None:
    attempts = Attempts(GROWING)
    assert 8.0 <= (attempts.pause(10.0) or 0) <= 12.0
    assert (attempts.pause(0.0) or 0) >= 1.6
    assert (attempts.pause(10_000.0) or 99) <= 36.0


def test_attempts_and_time_are_limited() -> None:
    attempts = Attempts(GROWING, retries=2)
    assert [attempts.pause() is None for _ in range(4)] == [False, False, True, True]
    now = 0.0
    attempts = Attempts(GROWING, seconds=10.0, clock=lambda: now)
    assert attempts.pause() is not None
    now = 9.0
    assert attempts.pause() is None


@pytest.mark.parametrize(
    ("kinds", "sent", "ends"),
    [
        ([None], 1, 200),
        ([Trouble.DROPPED, None], 2, 200),
        ([502, None], 2, 200),
        ([502, 502, 502], 2, 502),
        ([400], 1, 400),
        ([Trouble.REFUSED], 1, Trouble.REFUSED),
        ([Trouble.DROPPED] * 3, 2, Trouble.DROPPED),
    ],
)
def test_only_transient_failures_are_retried(kinds: list[Trouble | int | None], sent: int, ends: Trouble | int) -> None:
    asked = 0

    async def ask() -> HttpResponse:
        nonlocal asked
        kind = kinds[asked]
        asked += 1
        if isinstance(kind, Trouble):
            raise NoAnswer(kind)
        return HttpResponse(kind or 200, b"", {})

    async def main() -> Trouble | int:
        try:
            return (await again(ask, retries=1, rng=random.Random())).status
        except NoAnswer as lost:
            return lost.kind

    assert asyncio.run(main()) == ends
    assert asked == sent
