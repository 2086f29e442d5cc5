"""The interface of what learns from rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from taskapp_kit.train.turns import TrainingRow
from taskapp_kit.train.update.metrics import UpdateMetrics


class Learner(Protocol):
    """Updates the policy whose rollouts are played."""

    async def learn(self, rows: Sequence[TrainingRow]) -> UpdateMetrics:
        """Make one update; when it returns, the sampler has the new weights. Raises TrainingError, BadArgument."""
        ...
