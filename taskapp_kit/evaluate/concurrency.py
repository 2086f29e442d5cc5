"""How many rollouts of an evaluation run at once: a fixed number, or one that grows until the models are busy."""

from __future__ import annotations

import statistics
from typing import Protocol

MOST_AT_ONCE = 256
FIRST_AT_ONCE = 8
FEWEST_ANSWERS = 8
"""Answers at one number of rollouts, at least, before that number changes."""
SLOWER = 2.0
"""An answer's median seconds, as a multiple of those at first, from which more rollouts only wait longer."""


class Concurrency(Protocol):
    """limit: rollouts that may run at once now."""

    limit: int

    def see(self, seconds: float, *, rate_limited: bool) -> None:
        """Counts an answer of a model (or a turn of another policy); rate_limited: its endpoint said 429 before."""
        ...


class FixedConcurrency:
    """So many at once, always."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def see(self, seconds: float, *, rate_limited: bool) -> None:
        """See Concurrency: nothing changes."""


class AutoConcurrency:
    """Doubles the number until an endpoint says 429 or answers take twice as long as at first; at most MOST_AT_ONCE.

    It then returns to the number before and stays, except that each further 429 halves it. A number is judged by as many
    answers as rollouts run at once; answers that began before a change are left out.
    """

    def __init__(self, first: int = FIRST_AT_ONCE, most: int = MOST_AT_ONCE) -> None:
        self.limit = first
        self._most = most
        self._before = first
        self._growing = True
        self._seconds: list[float] = []
        self._limited = False
        self._left_out = 0
        self._at_first: float | None = None

    def see(self, seconds: float, *, rate_limited: bool) -> None:
        """See Concurrency."""
        if self._left_out:
            self._left_out -= 1
            return
        self._limited |= rate_limited
        self._seconds.append(seconds)
        if len(self._seconds) < max(FEWEST_ANSWERS, self.limit):
            return
        median, limited = statistics.median(self._seconds), self._limited
        self._seconds, self._limited = [], False
        if self._at_first is None:
            self._at_first = median
        if self._growing and (limited or median >= SLOWER * self._at_first > 0):
            self._growing = False
            self._change(self._before if self._before < self.limit or not limited else self.limit // 2)
        elif self._growing:
            self._before = self.limit
            self._growing = self.limit < self._most
            self._change(min(self._most, 2 * self.limit))
        elif limited:
            self._change(self.limit // 2)

    def _change(self, limit: int) -> None:
        if limit != self.limit:
            self.limit = max(1, limit)
            self._left_out = self.limit
