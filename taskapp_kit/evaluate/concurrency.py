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

    def see(self, seconds: float, *, congested: bool) -> None:
        """Counts an answer of a model, or a turn of another policy; congested: an endpoint said 429 or was overloaded."""
        ...


class FixedConcurrency:
    """So many at once, always."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def see(self, seconds: float, *, congested: bool) -> None:
        """See Concurrency: nothing changes."""


class AutoConcurrency:
    """Doubles the number until an endpoint is congested or answers take twice as long as at first; at most MOST_AT_ONCE.

    It then returns to the number before and stays there: how many calls a host gets at once from then on is limited by
    the models' client itself (rollout/models/attempts.py). A number is judged by the median of as many answers as rollouts
    run at once; those that began before it are left out. A 429 counts at once.
    """

    def __init__(self) -> None:
        self.limit = self._before = FIRST_AT_ONCE
        self._growing = True
        self._seconds: list[float] = []
        self._left_out = 0
        self._at_first: float | None = None

    def see(self, seconds: float, *, congested: bool) -> None:
        """See Concurrency."""
        if not self._growing:
            return
        if congested:
            self._stop()
        elif self._left_out:
            self._left_out -= 1
        else:
            self._seconds.append(seconds)
            if len(self._seconds) >= max(FEWEST_ANSWERS, self.limit):
                self._judge(statistics.median(self._seconds))

    def _judge(self, median: float) -> None:
        if self._at_first is None:
            self._at_first = median
        if median >= SLOWER * self._at_first > 0:
            self._stop()
            return
        self._before, self.limit = self.limit, min(MOST_AT_ONCE, 2 * self.limit)
        self._growing = self.limit > self._before
        self._seconds, self._left_out = [], self.limit

    def _stop(self) -> None:
        self.limit, self._growing = self._before, False
