"""How many calls a host is asked at once: more as long as it keeps up, fewer when it says that it has too much to do.

The limit is looked at once for every limit's worth of answers. While fewer than a tenth of them are signs of congestion (429,
503, a timeout) it grows: at first it doubles, after the first congestion it grows by a fixed step. Else it shrinks by half of
that share, at most to a half. Single signs change nothing: an endpoint that loses one call in fifty at random is not slow.
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

ANSWERS_FOR_PATIENCE = 128
LEAST_PATIENCE_SECONDS = 10.0
PATIENCE = 8.0


class HostLimiter:
    """The way to one host. `enter` and `leave` around each attempt, on one event loop."""

    def __init__(
        self, first_limit: float = FIRST_LIMIT, least_patience_seconds: float = LEAST_PATIENCE_SECONDS
    ) -> None:
        self.limit = float(first_limit)
        self._least_patience_seconds = least_patience_seconds
        self.in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._doubling = True
        self._epoch = 0
        self._answers = self._signs = 0
        self._full = False
        self._slowest = self._slowest_before = 0.0
        self._timed = 0
        self._patient = False

    @property
    def idle(self) -> bool:
        """Whether nobody is on the way or waits."""
        return self.in_flight == 0 and not self._waiting

    async def enter(self, seconds: float) -> int:
        """Waits for a place; gives a ticket for `leave`. Raises TimeoutError when there is none within `seconds`."""
        if self.in_flight < int(self.limit) and not self._waiting:
            self.in_flight += 1
            return self._epoch
        self._full = True
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            async with asyncio.timeout(seconds):
                await place
        except BaseException:
            if place.done() and not place.cancelled():  # it was given away at the same moment
                self.in_flight -= 1
                self._call_in()
            else:
                place.cancel()
            raise
        return self._epoch

    def leave(self, ticket: int, *, congested: bool = False, seconds: float | None = None) -> None:
        """Gives the place back. seconds: how long a good answer took."""
        if self.in_flight >= int(self.limit):
            self._full = True
        self.in_flight -= 1
        if seconds is not None:
            self._time(seconds)
        if ticket == self._epoch:  # what set out before the last reduction says nothing about the limit of now
            self._answers += 1
            self._signs += congested
            if self._answers >= max(FEWEST_ANSWERS, self.limit):
                self._judge()
        self._call_in()

    def _judge(self) -> None:
        share = self._signs / self._answers
        if share >= CONGESTED_SHARE:
            self.limit = max(LEAST_LIMIT, self.limit * (1 - share / 2))
            self._doubling = False
            self._epoch += 1
        elif self._full:
            self.limit = min(MOST_LIMIT, self.limit * 2 if self._doubling else self.limit + STEP)
        self._answers = self._signs = 0
        self._full = False

    def _call_in(self) -> None:
        while self._waiting and self.in_flight < int(self.limit):
            place = self._waiting.popleft()
            if not place.done():
                self.in_flight += 1
                place.set_result(None)

    def patience(self) -> float | None:
        """After how many seconds an attempt counts as hung: far beyond all of the last answers; None while few are known.

        Whoever asks again after a hung attempt gives the next one twice the time: an answer that really takes long costs a
        second call, and no failure.
        """
        if not self._patient:
            return None
        return max(self._least_patience_seconds, PATIENCE * max(self._slowest, self._slowest_before))

    def _time(self, seconds: float) -> None:
        self._slowest = max(self._slowest, seconds)
        self._timed += 1
        if self._timed >= ANSWERS_FOR_PATIENCE:
            self._slowest_before, self._slowest, self._timed, self._patient = self._slowest, 0.0, 0, True


class ConcurrencyLimiter:
    """A gate for each host that is called."""

    def __init__(
        self, first_limit: float = FIRST_LIMIT, least_patience_seconds: float = LEAST_PATIENCE_SECONDS
    ) -> None:
        self._gates: dict[str, HostLimiter] = {}
        self._first_limit, self._least_patience_seconds = first_limit, least_patience_seconds

    def fresh(self) -> ConcurrencyLimiter:
        """Another one that begins as this one did: for another event loop."""
        return ConcurrencyLimiter(self._first_limit, self._least_patience_seconds)

    def gate(self, place: str) -> HostLimiter:
        """The gate of `host` or `host:port`."""
        found = self._gates.get(place)
        if found is None:
            if len(self._gates) >= MOST_HOSTS:  # callers choose the hosts, so there may be any number of them
                self._gates = {name: gate for name, gate in self._gates.items() if not gate.idle}
            found = self._gates[place] = HostLimiter(self._first_limit, self._least_patience_seconds)
        return found
