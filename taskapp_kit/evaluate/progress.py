"""Counts what the rollouts of one evaluation have used so far, including running ones."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from taskapp_kit.contract.events import Answered, Event


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
        self._lock = threading.Lock()

    def count_event(self, event: Event) -> None:
        """Counts one event of a running rollout; called from any thread."""
        if isinstance(event, Answered) and not event.scripted:
            cost = event.answer.details.get("cost")
            self.add(1, event.answer.usage, cost if isinstance(cost, int | float) else None)

    def add(self, turns: int, usage: Mapping[str, float], cost: float | None = None) -> None:
        """Adds this many turns, with their usage."""
        with self._lock:
            self.turns += turns
            self.tokens += tokens_of(usage)
            if cost is not None:
                self.cost = (self.cost or 0.0) + cost


def tokens_of(usage: Mapping[str, float]) -> float:
    """Prompt and completion tokens of a `usage`."""
    return usage.get("prompt_tokens", 0.0) + usage.get("completion_tokens", 0.0)
