"""Stops an evaluation when its model is unavailable: every further rollout would fail in the same way."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from taskapp_kit.errors import EvaluationStopped

if TYPE_CHECKING:
    from taskapp_kit.evaluate.results import Result

GONE_CODES = frozenset({"model_unreachable", "model_refused", "model_rate_limited", "key_refused", "address_refused"})
"""Codes of failures that the next rollout of the same model would probably share."""
MAX_CONSECUTIVE_FAILURES = 8


class ModelFailures:
    """Counts rollouts that failed with one of GONE_CODES, per model and code, since that model's last success.

    limit: this many of one code stop the evaluation; 0 never does.
    """

    def __init__(self, limit: int = MAX_CONSECUTIVE_FAILURES) -> None:
        self._limit = limit
        self._counts: dict[str, Counter[str]] = {}

    def see(self, model: str, result: Result) -> None:
        """Counts a rollout of `model` that ended. Raises EvaluationStopped at the limit."""
        if not result.failed:
            self._counts.pop(model, None)
            return
        if result.code not in GONE_CODES:
            return
        counts = self._counts.setdefault(model, Counter())
        counts[result.code] += 1
        if self._limit and counts[result.code] >= self._limit:
            raise EvaluationStopped(
                f"{counts[result.code]} rollouts of {model} failed with {result.code}, and none succeeded meanwhile: "
                f"{(result.message or '').rstrip('.')}."
            )
