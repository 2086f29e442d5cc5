"""Decides when an evaluation stops early: at a limit, or when further rollouts would probably fail the same way."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taskapp_kit.errors import EvaluationLimitReached, EvaluationStopped
from taskapp_kit.evaluate.progress import Progress
from taskapp_kit.records.formatting import dollars
from taskapp_kit.records.scorecard import tokens_of

if TYPE_CHECKING:
    from taskapp_kit.records.protocols import RolloutRow


@dataclass(frozen=True, slots=True)
class EvalLimits:
    """The limits of an evaluation. None means no limit.

    Attributes:
        max_failures: The limit on failed rollouts in this run.
        max_cost: The limit on the cost of all models with known prices, over all runs, in US dollars.
        max_total_tokens: The limit on the policies' prompt and completion tokens, over all runs.
    """

    max_failures: int | None = None
    max_cost: float | None = None
    max_total_tokens: int | None = None


@dataclass(slots=True)
class Spending:
    """The usage of all result lines in a directory, including lines that were replaced. cost: In US dollars."""

    tokens: float = 0.0
    cost: float = 0.0

    def add(self, result: RolloutRow) -> None:
        """Add the usage of one line."""
        self.tokens += tokens_of(result.usage)
        self.cost += (result.policy_cost or 0.0) + (result.other_cost or 0.0)


class EvalBudget:
    """Compares the usage of an evaluation with its limits. before: The usage of earlier runs. progress: This run's usage.

    At a limit, no new rollouts are started. Running rollouts continue, so the final usage may exceed the limit.
    """

    def __init__(self, limits: EvalLimits, before: Spending, progress: Progress) -> None:
        self._limits = limits
        self._before = Spending(before.tokens, before.cost)
        self._progress = progress
        self._failures = 0
        self._without_price: str | None = None

    def see(self, model: str, result: RolloutRow) -> None:
        """Count an ended rollout of `model`."""
        self._failures += result.failed
        if self._limits.max_cost is not None and result.unpriced:
            self._without_price = model

    def reached(self) -> EvaluationLimitReached | None:
        """Return the error for the limit that was reached, or None if no limit was reached."""
        limits, tokens = self._limits, self._before.tokens + self._progress.tokens
        cost = self._before.cost + (self._progress.cost or 0.0)
        if limits.max_failures is not None and self._failures >= limits.max_failures:
            failed = "1 rollout" if self._failures == 1 else f"{self._failures} rollouts"
            return EvaluationLimitReached(f"{failed} failed, and --max-failures is {limits.max_failures}.")
        if limits.max_cost is not None and cost >= limits.max_cost:
            return EvaluationLimitReached(
                f"The models have cost {dollars(cost)} so far, and --max-cost is {limits.max_cost:g}."
            )
        if self._without_price is not None:
            return EvaluationLimitReached(
                f"The price of {self._without_price} is unknown, so --max-cost cannot be enforced.",
                hint="Add the model's prices to models.toml, or use --max-total-tokens.",
            )
        if limits.max_total_tokens is not None and tokens >= limits.max_total_tokens:
            return EvaluationLimitReached(
                f"The models have read and written {tokens:,.0f} tokens, and --max-total-tokens is "
                f"{limits.max_total_tokens:,}."
            )
        return None


SHARED_CODES = frozenset(
    {
        "judge_failed",
        "judge_unreadable",
        "judge_not_configured",
        "criterion_failed",
        "auxiliary_model_failed",
        "auxiliary_model_not_configured",
    }
)
"""Codes of failures that the next rollout of any policy would probably share.

These failures are counted over all policies.
"""
GONE_CODES = SHARED_CODES | {
    "model_unreachable",
    "model_refused",
    "model_rate_limited",
    "key_refused",
    "address_refused",
    "deadline",
}
"""SHARED_CODES, plus codes of failures that the next rollout of the same policy would probably share.

`deadline` is included because a model, judge or simulator that never responds causes it.
"""
MAX_CONSECUTIVE_FAILURES = 8


class ModelFailures:
    """Counts failures with one of GONE_CODES, for each code and policy, since the last success.

    limit: The evaluation stops after this many failures with the same code. With 0, the evaluation never stops
    for this reason.
    """

    def __init__(self, limit: int = MAX_CONSECUTIVE_FAILURES) -> None:
        self._limit = limit
        self._counts: dict[str | None, Counter[str]] = {}

    def see(self, model: str, result: RolloutRow) -> None:
        """Count an ended rollout of `model`. Raises EvaluationStopped when the limit is reached."""
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
