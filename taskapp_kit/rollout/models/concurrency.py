"""Limits the concurrent calls to each host: the limit grows while the host keeps up and shrinks on congestion.

The limit is adjusted after as many answers as the limit allows at once. While fewer than a tenth of them are signs of
congestion (429, 503, a timeout) it grows: it doubles at first, and grows by a fixed step after the first congestion. Else it
shrinks by half of that share, at most to a half. Single signs have no effect, so that random failures do not reduce it.
"""

from __future__ import annotations

import asyncio
from collections import deque

FIRST_LIMIT = 64
LEAST_LIMIT, MOST_LIMIT = 1, 4096
STEP = 4
FEWEST_ANSWERS = 8
CONGESTED_SHARE = 0.1
MOST_HOSTS = 1024

ANSWERS_FOR_HANG_TIMEOUT = 128
LEAST_HANG_TIMEOUT_SECONDS = 10.0
HANG_FACTOR = 8.0


class HostLimiter:
    """Limits the concurrent attempts at one host. Call `enter` and `leave` around each attempt, on one event loop.

    signs: of congestion, until now.
    """

    def __init__(
        self, first_limit: float = FIRST_LIMIT, least_hang_timeout_seconds: float = LEAST_HANG_TIMEOUT_SECONDS
    ) -> None:
        self.limit = float(first_limit)
        self._least_hang_timeout_seconds = least_hang_timeout_seconds
        self.in_flight = 0
        self.signs = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._doubling = True
        self._epoch = 0
        self._answers = self._signs = 0
        self._full = False
        self._slowest = self._slowest_before = 0.0
        self._timed = 0
        self._has_hang_timeout = False

    @property
    def idle(self) -> bool:
        """Whether no attempt is in flight or waiting."""
        return self.in_flight == 0 and not self._waiting

    async def enter(self, seconds: float) -> int:
        """Waits for a free slot; returns an epoch to pass to `leave`. Raises TimeoutError after `seconds`."""
        if self.in_flight < int(self.limit) and not self._waiting:
            self.in_flight += 1
            return self._epoch
        self._full = True
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(slot)
        try:
            async with asyncio.timeout(seconds):
                await slot
        except BaseException:
            if slot.done() and not slot.cancelled():  # granted at the moment of the timeout
                self.in_flight -= 1
                self._wake_waiters()
            else:
                slot.cancel()
            raise
        return self._epoch

    def leave(self, epoch: int, *, congested: bool = False, seconds: float | None = None) -> None:
        """Frees the slot. seconds: the duration of a successful answer."""
        if self.in_flight >= int(self.limit):
            self._full = True
        self.in_flight -= 1
        self.signs += congested
        if seconds is not None:
            self._time(seconds)
        if epoch == self._epoch:  # attempts from before the last reduction say nothing about the current limit
            self._answers += 1
            self._signs += congested
            if self._answers >= max(FEWEST_ANSWERS, self.limit):
                self._adjust()
        self._wake_waiters()

    def _adjust(self) -> None:
        share = self._signs / self._answers
        if share >= CONGESTED_SHARE:
            self.limit = max(LEAST_LIMIT, self.limit * (1 - share / 2))
            self._doubling = False
            self._epoch += 1
        elif self._full:
            self.limit = min(MOST_LIMIT, self.limit * 2 if self._doubling else self.limit + STEP)
        self._answers = self._signs = 0
        self._full = False

    def _wake_waiters(self) -> None:
        while self._waiting and self.in_flight < int(self.limit):
            slot = self._waiting.popleft()
            if not slot.done():
                self.in_flight += 1
                slot.set_result(None)

    def hang_timeout(self) -> float | None:
        """Seconds after which an attempt counts as hung, a multiple of the slowest recent answer; None while few are known.

        Callers double it after each hung attempt, so that an answer that is really slow costs a second call and no failure.
        """
        if not self._has_hang_timeout:
            return None
        return max(self._least_hang_timeout_seconds, HANG_FACTOR * max(self._slowest, self._slowest_before))

    def _time(self, seconds: float) -> None:
        self._slowest = max(self._slowest, seconds)
        self._timed += 1
        if self._timed >= ANSWERS_FOR_HANG_TIMEOUT:
            self._slowest_before, self._slowest, self._timed, self._has_hang_timeout = self._slowest, 0.0, 0, True


class ConcurrencyLimiter:
    """A `HostLimiter` for each host that is called."""

    def __init__(
        self, first_limit: float = FIRST_LIMIT, least_hang_timeout_seconds: float = LEAST_HANG_TIMEOUT_SECONDS
    ) -> None:
        self._hosts: dict[str, HostLimiter] = {}
        self._first_limit, self._least_hang_timeout_seconds = first_limit, least_hang_timeout_seconds

    def fresh(self) -> ConcurrencyLimiter:
        """A new one with the same settings, for another event loop."""
        return ConcurrencyLimiter(self._first_limit, self._least_hang_timeout_seconds)

    @property
    def signs(self) -> int:
        """Signs of congestion at all hosts, until now."""
        return sum(host.signs for host in self._hosts.values())

    def host(self, place: str) -> HostLimiter:
        """The limiter of `scheme://host` or `scheme://host:port`."""
        found = self._hosts.get(place)
        if found is None:
            if len(self._hosts) >= MOST_HOSTS:  # callers choose the hosts, so their number is not bounded
                self._hosts = {name: host for name, host in self._hosts.items() if not host.idle}
            found = self._hosts[place] = HostLimiter(self._first_limit, self._least_hang_timeout_seconds)
        return found
