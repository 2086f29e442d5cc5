"""Stops an evaluation when every further rollout would probably fail in the same way, after its policy's calls were paid."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from taskapp_kit.errors import EvaluationStopped

if TYPE_CHECKING:
    from taskapp_kit.records.protocols import RolloutRow

SHARED_CODES = frozenset(
    {
        "judge_failed", "judge_unreadable", "judge_not_configured", "criterion_failed", "auxiliary_model_failed",
        "auxiliary_model_not_configured",
    }
)  # fmt: skip
"""Codes of failures that the next rollout of any policy would probably share: they are counted over all policies."""
GONE_CODES = SHARED_CODES | {
    "model_unreachable", "model_refused", "model_rate_limited", "key_refused", "address_refused", "deadline",
}  # fmt: skip
"""Those, and the codes of failures that the next rollout of the same policy would probably share. A model, a judge or a
simulator that takes calls and answers none ends in `deadline`."""
MAX_CONSECUTIVE_FAILURES = 8


class ModelFailures:
    """Counts the rollouts that failed with one of GONE_CODES, per cause, since the last success that excludes the cause.

    limit: this many of one cause stop the evaluation; 0 never does.
    """

    def __init__(self, limit: int = MAX_CONSECUTIVE_FAILURES) -> None:
        self._limit = limit
        self._counts: dict[str | None, Counter[str]] = {}

    def see(self, model: str, result: RolloutRow) -> None:
        """Counts a rollout of `model` that ended. Raises EvaluationStopped at the limit."""
        if not result.failed:
            self._counts.pop(model, None)
            self._counts.pop(None, None)
            return
        if result.code not in GONE_CODES:
            return
        whose = None if result.code in SHARED_CODES else model
        counts = self._counts.setdefault(whose, Counter())
        counts[result.code] += 1
        if self._limit and counts[result.code] >= self._limit:
            of_model = "" if whose is None else f" of {whose}"
            raise EvaluationStopped(
                f"{counts[result.code]} rollouts{of_model} failed with {result.code}, and none succeeded in the meantime: "
                f"{(result.message or '').rstrip('.')}."
            )
