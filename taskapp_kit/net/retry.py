"""Retries requests with pauses, and follows chains of 303 redirects.

The caller decides which failures to retry. `Attempts` computes the pauses, which grow and respect a server's
Retry-After, and limits the number of attempts and the total time.
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
"""The range of the random factor of a pause, so that callers that failed together do not retry together."""
MAY_PASS = NO_CONNECTION | {Trouble.DROPPED, Trouble.TRUNCATED, Trouble.TIMEOUT}
"""The errors after which a request is retried. Other failures, such as a closed port, are not retried."""
GATEWAY_TROUBLE = frozenset({408, 429, 502, 503, 504})
"""The statuses after which a request is retried, unless the response comes from the task app itself."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pauses between attempts, which grow by a factor from the first to the longest."""

    first_seconds: float = 0.2
    longest_seconds: float = 5.0
    growth: float = 2.0


class Attempts:
    """Counts the failed attempts of one call and computes the pauses between them.

    Args:
        backoff: The lengths of the pauses.
        retries: How many attempts may follow the first attempt. None sets no limit.
        seconds: The time limit for all attempts and pauses, from the creation of this object. None sets no limit.
        rng: The random generator for the jitter.
        clock: A function that returns monotonic time in seconds.
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
        """Return the remaining seconds for attempts and pauses."""
        return self._end - self._clock()

    def reset(self) -> None:
        """Reset the count of failed attempts, after a successful attempt."""
        self._failed = 0

    def pause(self, retry_after: float | None = None) -> float | None:
        """Count a failed attempt. Return the seconds to wait before the next attempt, or None to stop.

        retry_after: The pause in seconds that the server requested. It is limited to the longest pause.
        """
        # the exponent is limited, because 2.0**1024 would overflow and a job may retry for days
        grown = self._backoff.first_seconds * self._backoff.growth ** min(self._failed, 64)
        self._failed += 1
        seconds = min(max(retry_after or 0.0, grown), self._backoff.longest_seconds) * self._rng.uniform(*JITTER)
        if self._retries is not None and self._failed > self._retries:
            return None
        # do not pause if no time for another attempt would remain
        return seconds if seconds < self.left else None


async def again(ask: Callable[[], Awaitable[HttpResponse]], *, retries: int, rng: random.Random) -> HttpResponse:
    """Send an idempotent request, and retry if the connection breaks or a gateway fails.

    Returns the first response that is not a gateway error, or the last response after all retries. Raises NoAnswer if
    the last attempt got no response, or immediately if no server is listening.
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
"""The time after which Modal's gateway responds with another 303."""


class ForeignRedirect(Exception):
    """A redirect has no valid target, or its target is another server, which must not receive the key.

    place: `host` or `host:port` of the other server, or "" if the target is invalid.
    """

    def __init__(self, why: str, place: str = "") -> None:
        super().__init__(why)
        self.place = place


class OutOfHops(Exception):
    """The chain of redirects exceeds the allowed number of redirects or the caller's time limit."""


def hop_budget(timeout_seconds: float) -> int:
    """Return how many redirects a request with this time limit may follow."""
    return math.ceil(timeout_seconds / GATEWAY_SECONDS) + 2


def next_address(current: str, location: str | None) -> str:
    """Return the target of a redirect. Raises ForeignRedirect if the target is invalid or on another server.

    current: the address that responded. location: the value of its Location header.
    """
    if not location:
        raise ForeignRedirect("it has no Location header")
    try:
        target, here = read_url(urljoin(current, location)), read_url(current)
    except (NotAnAddress, ValueError):  # urljoin raises ValueError
        raise ForeignRedirect("its Location header is invalid") from None
    # the key belongs to the current server and must not be sent to another server
    if not target.same_origin(here):
        raise ForeignRedirect("it points to another server", target.place)
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

    Args:
        transport: Sends the requests.
        answer: The first response.
        hops: The maximum number of redirects.
        retries: How many times the request to each address may be retried.
        hop_seconds: The time limit for each request.
        left: A function that returns the seconds until the caller's time limit.
        headers: Headers of each request.

    Raises:
        NoAnswer: The last attempt at an address got no response.
        ForeignRedirect: A redirect has an invalid target or another server as its target.
        OutOfHops: There were too many redirects, or the time limit was reached.
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
                # only this GET is retried: a second POST would play and pay for another rollout
                got = await transport.send("GET", address, headers=headers, seconds=seconds)
            except NoAnswer as no_answer:
                trouble = no_answer
            else:
                # a response with the kit's envelope comes from the task app, so retrying would not help
                if got.status not in GATEWAY_TROUBLE or error_members(got) is not None:
                    break
            pause = attempts.pause()
            if pause is None or left() <= 0:
                if trouble is None:
                    return got
                raise trouble
            log.info("redirect %d of a request failed (%s); retrying", followed, trouble or got.status)
            await asyncio.sleep(max(0.0, min(pause, left())))
        answer = got
    return answer
