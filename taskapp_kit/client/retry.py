"""Repeats a request that changes nothing when its connection broke."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from taskapp_kit.net.http import NO_CONNECTION, HttpResponse, NoAnswer, Trouble
from taskapp_kit.net.redirects import GATEWAY_TROUBLE

FIRST_PAUSE = 0.2
MAX_PAUSE = 5.0
MAY_PASS = NO_CONNECTION | {Trouble.DROPPED, Trouble.TRUNCATED, Trouble.TIMEOUT}
"""Errors worth a retry: not a closed port, and not what is wrong with the request or the server."""


async def again(ask: Callable[[], Awaitable[HttpResponse]], *, retries: int, rng: random.Random) -> HttpResponse:
    """Return the first good response, else the last one. Raises NoAnswer, at once where no server listens."""
    tries = 0
    while True:
        wanted: float | None = None
        try:
            answer = await ask()
        except NoAnswer as lost:
            if tries >= retries or lost.kind not in MAY_PASS:
                raise
        else:
            if answer.status not in GATEWAY_TROUBLE or tries >= retries:
                return answer
            wanted = answer.retry_after
        pause = min(MAX_PAUSE, max(wanted or 0.0, FIRST_PAUSE * 2**tries))
        tries += 1
        await asyncio.sleep(pause * rng.uniform(0.8, 1.2))
