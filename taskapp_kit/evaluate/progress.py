"""Counts what the rollouts of one evaluation have used so far, including running ones."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from taskapp_kit.records.events import Answered, Event
from taskapp_kit.records.scorecard import tokens_of


class Progress:
    """The counts of this run. under_way: rollouts that have begun and not ended.

    turns: decisions of the policy. tokens: prompt and completion, as the endpoint counted them. cost: US dollars of the
    calls whose price is known, None while none is. Those of a rollout at a server are added when it ends.
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
        """Counts one event of a running rollout; called from any thread."""
        if isinstance(event, Answered) and not event.scripted:
            details = event.answer.details
            cost = details.get("cost")
            self.add(1, event.answer.usage, cost if isinstance(cost, int | float) else None)
            if self._calls is not None and "attempts" in details and not details.get("cached"):
                seconds = details.get("seconds")
                self._calls.append(float(seconds) if isinstance(seconds, int | float) else 0.0)  # atomic

    def add(self, turns: int, usage: Mapping[str, float], cost: float | None = None) -> None:
        """Adds this many turns, with their usage."""
        with self._lock:
            self.turns += turns
            self.tokens += tokens_of(usage)
            if cost is not None:
                self.cost = (self.cost or 0.0) + cost

    def new_calls(self) -> list[float]:
        """Seconds of each answer of a model since the last call of this.

        The first call returns none; answers are remembered from then on. Those of a server are not known here.
        """
        taken, self._calls = self._calls, []
        return taken or []

    def see_congestion(self, signs: int) -> None:
        """Notes the signs of congestion at the models' hosts until now."""
        self._congested |= signs > self._signs
        self._signs = signs

    def new_congestion(self) -> bool:
        """Whether there was one since the last call of this."""
        taken, self._congested = self._congested, False
        return taken
