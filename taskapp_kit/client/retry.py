"""A request that changes nothing is asked again when it broke."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from taskapp_kit.net.http import HttpResponse, NoAnswer
from taskapp_kit.net.redirects import GATEWAY_TROUBLE

FIRST_PAUSE = 0.2
LONGEST_PAUSE = 5.0


async def again(ask: Callable[[], Awaitable[HttpResponse]], *, retries: int, rng: random.Random) -> HttpResponse:
    """The first good answer, else the last one. Raises NoAnswer; a server where nobody listens is asked once only."""
    tries = 0
    while True:
        told: float | None = None
        try:
            answer = await ask()
        except NoAnswer as lost:
            if tries >= retries or lost.kind not in ("dropped", "timeout", "connect"):
                raise
        else:
            if answer.status not in GATEWAY_TROUBLE or tries >= retries:
                return answer
            told = answer.retry_after
        pause = min(LONGEST_PAUSE, max(told or 0.0, FIRST_PAUSE * 2**tries))
        tries += 1
        await asyncio.sleep(pause * rng.uniform(0.8, 1.2))
