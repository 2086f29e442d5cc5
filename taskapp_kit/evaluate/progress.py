"""Counts the turns, the tokens and the cost of an evaluation so far, including running rollouts."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from taskapp_kit.records.events import Answered, Event
from taskapp_kit.records.scorecard import tokens_of


class Progress:
    """The counts of this run. A rollout on a server is counted when it ends.

    Attributes:
        under_way: The number of running rollouts.
        turns: The number of decisions of policies.
        tokens: Prompt and completion tokens, as counted by the endpoint.
        cost: The cost of calls with a known price in US dollars, or None if no price is known.
    """

    def __init__(self) -> None:
        self.under_way = 0
        self.turns = 0
        self.tokens = 0.0
        self.cost: float | None = None
        self._calls: list[float] | None = None
        self._signs = 0
        self._congested = False
        self._lock = threading.Lock()

    def count_event(self, event: Event) -> None:
        """Count one event of a running rollout. May be called from any thread."""
        if isinstance(event, Answered) and not event.scripted:
            details = event.answer.details
            cost = details.get("cost")
            self.add(1, event.answer.usage, cost if isinstance(cost, int | float) else None)
            if self._calls is not None and "attempts" in details and not details.get("cached"):
                seconds = details.get("seconds")
                self._calls.append(float(seconds) if isinstance(seconds, int | float) else 0.0)  # atomic

    def add(self, turns: int, usage: Mapping[str, float], cost: float | None = None) -> None:
        """Add turns with their usage and cost."""
        with self._lock:
            self.turns += turns
            self.tokens += tokens_of(usage)
            if cost is not None:
                self.cost = (self.cost or 0.0) + cost

    def new_calls(self) -> list[float]:
        """Return the duration in seconds of each model call that ended since `new_calls` was last called.

        Model calls on a server are not included. The first time, `new_calls` starts the recording and returns an empty
        list.
        """
        taken, self._calls = self._calls, []
        return taken or []

    def see_congestion(self, signs: int) -> None:
        """Record how many signs of congestion the models' hosts have shown so far."""
        self._congested |= signs > self._signs
        self._signs = signs

    def new_congestion(self) -> bool:
        """Return whether there was congestion since `new_congestion` was last called."""
        taken, self._congested = self._congested, False
        return taken
