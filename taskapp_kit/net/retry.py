"""Retries of requests, with their pauses, and chains of 303 responses.

The caller decides which failures to retry. `Attempts` does the rest: pauses grow, a server's Retry-After counts, and
attempts and time are limited.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urljoin

from taskapp_kit.net.addresses import NotAnAddress, read_url
from taskapp_kit.net.envelope import error_members
from taskapp_kit.net.http import NO_CONNECTION, HttpResponse, NoAnswer, Transport, Trouble

_RANDOM = random.Random()
JITTER = (0.8, 1.2)
"""Random factors of a pause, so that callers that failed together do not retry together."""
MAY_PASS = NO_CONNECTION | {Trouble.DROPPED, Trouble.TRUNCATED, Trouble.TIMEOUT}
"""Errors to retry: not a closed port, nor a wrong request or server."""
GATEWAY_TROUBLE = frozenset({408, 429, 502, 503, 504})
"""Statuses to retry, unless the response is the task app's own."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pauses between attempts, which grow by a factor from the first to the longest."""

    first_seconds: float = 0.2
    longest_seconds: float = 5.0
    growth: float = 2.0


class Attempts:
    """Counts the failed attempts of one call.

    Args:
        backoff: The pauses.
        retries: How many attempts may follow the first; None: as many as the time allows.
        seconds: The time for all attempts and pauses, from now on; None: no limit.
        rng: Draws the jitter.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        backoff: Backoff,
        *,
        retries: int | None = None,
        seconds: float | None = None,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._failed = 0
        self._backoff, self._retries = backoff, retries
        self._rng, self._clock = rng or _RANDOM, clock
        self._end = math.inf if seconds is None else clock() + seconds

    @property
    def left(self) -> float:
        """Return the seconds left for attempts and pauses."""
        return self._end - self._clock()

    def reset(self) -> None:
        """Restart the count, after a successful attempt."""
        self._failed = 0

    def pause(self, retry_after: float | None = None) -> float | None:
        """Count a failed attempt. Return the seconds to wait before the next one, or None to stop.

        retry_after: The seconds that the server requests; at most the longest pause is waited.
        """
        # 2.0**1024 would overflow, and a job may wait for days
        grown = self._backoff.first_seconds * self._backoff.growth ** min(self._failed, 64)
        self._failed += 1
        seconds = min(max(retry_after or 0.0, grown), self._backoff.longest_seconds) * self._rng.uniform(*JITTER)
        if self._retries is not None and self._failed > self._retries:
            return None
        # a pause that leaves no time for another attempt is pointless
        return seconds if seconds < self.left else None


async def again(ask: Callable[[], Awaitable[HttpResponse]], *, retries: int, rng: random.Random) -> HttpResponse:
    """Send an idempotent request, and retry while its connection breaks or a gateway fails.

    Returns the first good response, else the last. Raises NoAnswer, immediately if no server listens.
    """
    attempts = Attempts(Backoff(), retries=retries, rng=rng)
    while True:
        try:
            answer = await ask()
        except NoAnswer as lost:
            # a closed port usually means that the server was not started
            if lost.kind not in MAY_PASS or (pause := attempts.pause()) is None:
                raise
        else:
            if answer.status not in GATEWAY_TROUBLE or (pause := attempts.pause(answer.retry_after)) is None:
                return answer
        await asyncio.sleep(pause)


log = logging.getLogger("taskapp_kit.client")

GATEWAY_SECONDS = 150.0
"""The time after which Modal's gateway answers with the next 303."""


class ForeignRedirect(Exception):
    """A redirect leads to another server, which must not get the key, or nowhere.

    place: `host` or `host:port` of that server, "" if it cannot be read.
    """

    def __init__(self, why: str, place: str = "") -> None:
        super().__init__(why)
        self.place = place


class OutOfHops(Exception):
    """The chain of redirects is longer than the caller's time."""


def hop_budget(timeout_seconds: float) -> int:
    """Return how many redirects a request of this length may take."""
    return math.ceil(timeout_seconds / GATEWAY_SECONDS) + 2


def next_address(current: str, location: str | None) -> str:
    """Return the target of a redirect. Raises ForeignRedirect, whose text is only the reason."""
    if not location:
        raise ForeignRedirect("it has no address")
    try:
        target, here = read_url(urljoin(current, location)), read_url(current)
    except (NotAnAddress, ValueError):  # urljoin raises ValueError
        raise ForeignRedirect("its address cannot be read") from None
    # the key belongs to the named server, but would be sent to the other one
    if not target.same_origin(here):
        raise ForeignRedirect("it leads to another server", target.place)
    return target.url


async def follow(
    transport: Transport,
    answer: HttpResponse,
    *,
    hops: int,
    retries: int,
    hop_seconds: float,
    left: Callable[[], float],
    headers: Mapping[str, str] | None = None,
) -> HttpResponse:
    """Return the first response that is not a 303.

    hops: the maximum number of redirects. retries: how often in a row an address may be requested again. hop_seconds: the
    time for each request. left: seconds until the caller gives up. Raises NoAnswer, ForeignRedirect, OutOfHops.
    """
    followed = 0
    while answer.status == 303:
        followed += 1
        attempts = Attempts(Backoff(), retries=retries)
        if followed > hops or left() <= 0:
            raise OutOfHops
        address = next_address(answer.url, answer.headers.get("location"))
        while True:
            trouble: NoAnswer | None = None
            seconds = min(hop_seconds, left())
            if seconds <= 0:
                raise OutOfHops
            try:
                # not for a POST, because a second rollout would cost money and count as another episode
                got = await transport.send("GET", address, headers=headers, seconds=seconds)
            except NoAnswer as no_answer:
                trouble = no_answer
            else:
                # a response with the kit's envelope is the task app's own, so a retry would not change it
                if got.status not in GATEWAY_TROUBLE or error_members(got) is not None:
                    break
            pause = attempts.pause()
            if pause is None or left() <= 0:
                if trouble is None:
                    return got
                raise trouble
            log.info("redirect %d of a request broke (%s); requesting it again", followed, trouble or got.status)
            await asyncio.sleep(max(0.0, min(pause, left())))
        answer = got
    return answer
