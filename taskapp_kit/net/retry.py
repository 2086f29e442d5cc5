"""How often a request is repeated, after which pauses, and where a chain of 303 responses is followed.

A caller knows which of its failures may pass. `Attempts` has the rest: the pause grows, a server's Retry-After counts, and
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
"""Factors of a pause, so that callers which failed together do not come back together."""
MAY_PASS = NO_CONNECTION | {Trouble.DROPPED, Trouble.TRUNCATED, Trouble.TIMEOUT}
"""Errors worth a retry: not a closed port, and not what is wrong with the request or the server."""
GATEWAY_TROUBLE = frozenset({408, 429, 502, 503, 504})
"""Statuses worth a retry, where the response is not the task app's own."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pauses between attempts. The first one grows by a factor each time, up to the longest."""

    first_seconds: float = 0.2
    longest_seconds: float = 5.0
    growth: float = 2.0


class Attempts:
    """Counts the failed attempts of one call.

    Args:
        backoff: The pauses.
        retries: How many attempts may follow the first; None: as many as there is time for.
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
        """The seconds that are left for attempts and pauses."""
        return self._end - self._clock()

    def reset(self) -> None:
        """Count from the start again, after an attempt that succeeded."""
        self._failed = 0

    def pause(self, retry_after: float | None = None) -> float | None:
        """Count a failed attempt. Return the seconds to wait before the next one, None if there is to be none.

        retry_after: The seconds that the server asks for; more than the longest pause is not waited.
        """
        # 2.0**1024 would overflow, and a job may wait for days
        grown = self._backoff.first_seconds * self._backoff.growth ** min(self._failed, 64)
        self._failed += 1
        seconds = min(max(retry_after or 0.0, grown), self._backoff.longest_seconds) * self._rng.uniform(*JITTER)
        if self._retries is not None and self._failed > self._retries:
            return None
        # a pause that leaves no time for the attempt after it is not worth waiting
        return seconds if seconds < self.left else None


async def again(ask: Callable[[], Awaitable[HttpResponse]], *, retries: int, rng: random.Random) -> HttpResponse:
    """Send a request that changes nothing, again while its connection breaks or a gateway fails.

    Returns the first good response, else the last one. Raises NoAnswer, at once where no server listens.
    """
    attempts = Attempts(Backoff(), retries=retries, rng=rng)
    while True:
        try:
            answer = await ask()
        except NoAnswer as lost:
            # a closed port is not waited for: mostly nobody has started the server
            if lost.kind not in MAY_PASS or (pause := attempts.pause()) is None:
                raise
        else:
            if answer.status not in GATEWAY_TROUBLE or (pause := attempts.pause(answer.retry_after)) is None:
                return answer
        await asyncio.sleep(pause)


log = logging.getLogger("taskapp_kit.client")

GATEWAY_SECONDS = 150.0
"""After so long Modal's gateway answers with the next 303."""


class ForeignRedirect(Exception):
    """A redirect leads to another server, or nowhere: the key belongs to the server that was named.

    place: `host` or `host:port` of that server, "" when it cannot be read.
    """

    def __init__(self, why: str, place: str = "") -> None:
        super().__init__(why)
        self.place = place


class OutOfHops(Exception):
    """The chain is longer than the time that the caller gave."""


def hop_budget(timeout_seconds: float) -> int:
    """Return how many redirects a request of that length may take."""
    return math.ceil(timeout_seconds / GATEWAY_SECONDS) + 2


def next_address(current: str, location: str | None) -> str:
    """Return where a redirect leads. Raises ForeignRedirect, whose text is the reason alone."""
    if not location:
        raise ForeignRedirect("it names no address")
    try:
        target, here = read_url(urljoin(current, location)), read_url(current)
    except (NotAnAddress, ValueError):  # urljoin raises ValueError
        raise ForeignRedirect("its address cannot be read") from None
    # the key belongs to the server that was named, and would go along
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

    hops: redirects that may be followed. retries: how often in a row one address may be asked again. hop_seconds: for each
    request. left: seconds until the caller gives up. Raises NoAnswer, ForeignRedirect, OutOfHops.
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
                # not a POST: a second rollout would cost money and count as another episode
                got = await transport.send("GET", address, headers=headers, seconds=seconds)
            except NoAnswer as no_answer:
                trouble = no_answer
            else:
                # an answer with our envelope is the task app's own, which asking again does not change
                if got.status not in GATEWAY_TROUBLE or error_members(got) is not None:
                    break
            pause = attempts.pause()
            if pause is None or left() <= 0:
                if trouble is None:
                    return got
                raise trouble
            log.info("redirect %d of a request broke (%s); asking for it again", followed, trouble or got.status)
            await asyncio.sleep(max(0.0, min(pause, left())))
        answer = got
    return answer
