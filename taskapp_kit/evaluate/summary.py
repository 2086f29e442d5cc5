"""Statistics of many rollouts. Sums are exact (`math.fsum`), so the order of the rollouts does not matter."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from taskapp_kit.evaluate.rows import groups_of
from taskapp_kit.records.content import Json
from taskapp_kit.records.protocols import RolloutRow
from taskapp_kit.records.score_ranges import ScoreRanges
from taskapp_kit.records.scorecard import ModelUse, summed
from taskapp_kit.records.statistics import (
    UNBOUNDED,
    Interval,
    IntervalMethod,
    Range,
    clustered_standard_error,
    mean_interval,
)
from taskapp_kit.records.trajectory import nothing_accepted

NUMBERS = ("outcome_score", "events_score", "total_reward", "length")
PASS_AT = 1.0
EVERY_K_UP_TO = 8


class Column:
    """The values of one number, with their seeds. Each value takes 16 bytes."""

    __slots__ = ("_seeds", "_values")

    def __init__(self) -> None:
        self._values, self._seeds = array("d"), array("q")

    def add(self, value: float | None, seed: int) -> None:
        """Add the value of one rollout. None is ignored."""
        if value is not None:
            self._values.append(value)
            self._seeds.append(seed)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def mean(self) -> float | None:
        """The mean, or None if there are no values."""
        # fsum is exact in any order, so interrupted and uninterrupted evaluations have the same summary
        return math.fsum(self._values) / len(self._values) if self._values else None

    @property
    def total(self) -> float:
        """The sum."""
        return math.fsum(self._values)

    def interval(self, method: IntervalMethod, bounds: Range = UNBOUNDED) -> Interval:
        """Return the confidence interval of the mean, clustered by seed. bounds: The range of possible values."""
        return mean_interval(self._values, self._seeds, method=method, bounds=bounds)

    @property
    def standard_error(self) -> float | None:
        """The standard error of the mean, or None with fewer than two seeds.

        It is computed over seeds, because samples of the same seed are dependent.
        """
        return clustered_standard_error(self._values, self._seeds)

    def to_json(self) -> dict[str, Json]:
        """Return the column as JSON for a summary."""
        return {"mean": self.mean, "standard_error": self.standard_error, "n": len(self)}


@dataclass(frozen=True)
class SummaryOptions:
    """Options of a summary.

    Attributes:
        by: The fields by which results are grouped (see `rows.groups_of`).
        pass_at: The lowest reward with which a rollout passes.
        interval: How the reward's confidence interval is computed.
        ranges: The ranges of the reward and the criteria. Intervals are clipped to them.
    """

    by: tuple[str, ...] = ()
    pass_at: float = PASS_AT
    interval: IntervalMethod = "bootstrap"
    ranges: ScoreRanges = field(default_factory=ScoreRanges)


SUMMARY_OPTIONS = SummaryOptions()


class RewardStatistics:
    """The outcomes and rewards of rollouts, for a whole evaluation or one group."""

    def __init__(self, options: SummaryOptions) -> None:
        self._options = options
        self._ends: Counter[str] = Counter()
        self._reward = Column()
        self._passes = PassRates(options.pass_at)

    def add(self, result: RolloutRow) -> None:
        """Count a result. Rollouts that failed or have no reward are excluded from means and pass rates."""
        self._ends[result.status] += 1
        if result.reward is not None and not result.failed:
            self._reward.add(result.reward, result.seed)
            self._passes.add(result.reward, result.seed)

    def rollouts(self) -> dict[str, Json]:
        """Return the number of rollouts by outcome.

        `undefined` counts rollouts that did not fail but have no reward.
        """
        finished = self._ends.total() - self._ends["failed"]
        return {
            "done": self._ends.total(),
            **{status: self._ends[status] for status in ("terminated", "truncated", "failed")},
            "scored": len(self._reward),
            "undefined": finished - len(self._reward),
        }

    def rewards(self) -> dict[str, Json]:
        """Return the summary's fields about rewards."""
        return {
            "reward": self._reward.to_json(),
            "interval": self._reward.interval(self._options.interval, self._options.ranges.reward).to_json(),
            "pass": self._passes.to_json(),
        }

    def to_json(self) -> dict[str, Json]:
        """Return the group as JSON for a summary."""
        return {"rollouts": self.rollouts(), **self.rewards()}


class EvalStatistics:
    """The numbers of an evaluation, or of one of its policies."""

    def __init__(self, options: SummaryOptions = SUMMARY_OPTIONS) -> None:
        self._options = options
        self._rewards = RewardStatistics(options)
        self._groups: dict[str, dict[Json, RewardStatistics]] = {by: {} for by in options.by}
        self._columns = {name: Column() for name in NUMBERS}
        self._criteria: dict[str, Column] = {}
        self._metrics: dict[str, Column] = {}
        self._usage: dict[str, Column] = {}
        self._cost = CostStatistics()
        self._models: list[ModelUse] = []
        self._seconds = Column()
        self._failures: Counter[tuple[str, str]] = Counter()
        self._reasons: Counter[str] = Counter()
        self._without_action = 0
        self._digest = hashlib.sha256()
        self._observation_digest: hashlib._Hash | None = hashlib.sha256()

    def add(self, result: RolloutRow) -> None:
        """Add a result. A failed rollout is counted by boundary, and its usage is counted, but means exclude it."""
        self._rewards.add(result)
        for by, groups in self._groups.items():
            for value in groups_of(by, result.row, result.seed):
                groups.setdefault(value, RewardStatistics(self._options)).add(result)
        self._seconds.add(result.seconds, result.seed)
        self._cost.add(result)
        self._models = summed((*self._models, *result.models))
        _add_all(self._usage, result.usage, result.seed)
        if result.failed:
            self._failures[result.boundary or "", result.code or ""] += 1
            line = pictured = f"{result.seed} {result.boundary} {result.code}\n"
        else:
            line = f"{result.seed} {result.digest} {result.reward!r}\n"
            pictured = f"{result.seed} {result.observation_digest} {result.reward!r}\n"
            if result.observation_digest is None:
                self._observation_digest = None
        self._digest.update(line.encode())
        if self._observation_digest is not None:
            self._observation_digest.update(pictured.encode())
        if result.failed:
            return
        self._reasons[result.stop_reason or ""] += 1
        self._without_action += nothing_accepted(result.length, result.metrics)
        for name, column in self._columns.items():
            column.add(getattr(result, name), result.seed)
        _add_all(self._criteria, result.criteria, result.seed)
        _add_all(self._metrics, result.metrics, result.seed)

    def to_json(self, asked: int) -> dict[str, Json]:
        """Return the summary's numbers. Only `timing` differs between two runs of the same evaluation.

        `observation_digest` is None if a rollout that did not fail has no digest. Groups are in the plan's order.
        """
        failures: dict[str, Any] = {}
        for (boundary, code), count in sorted(self._failures.items()):
            failures.setdefault(boundary or "untold", {})[code] = count
        rewards = self._rewards.rewards()
        return {
            "rollouts": {
                "asked": asked,
                **self._rewards.rollouts(),
                "without_valid_action": self._without_action,
            },
            "reward": rewards.pop("reward"),
            **{
                ("return" if name == "total_reward" else name): column.to_json()
                for name, column in self._columns.items()
            },
            **rewards,
            "criteria": _as_json(self._criteria),
            "metrics": _as_json(self._metrics),
            "failures": failures,
            "stop_reasons": dict(sorted(self._reasons.items())),
            "usage": {name: self._usage[name].total for name in sorted(self._usage)},
            "cost": self._cost.to_json(),
            "models": self._models,
            "by": {
                by: [{"value": value, **group.to_json()} for value, group in groups.items()]
                for by, groups in self._groups.items()
            },
            "digest": self._digest.hexdigest(),
            "observation_digest": None if self._observation_digest is None else self._observation_digest.hexdigest(),
            "timing": {"rollout_seconds": {"mean": self._seconds.mean, "total": self._seconds.total}},
        }


class CostStatistics:
    """The cost of the models' calls in US dollars, including calls in failed rollouts."""

    def __init__(self) -> None:
        self._policy, self._other, self._failed = Column(), Column(), Column()
        self._without_price = 0

    def add(self, result: RolloutRow) -> None:
        """Add the cost of one rollout."""
        self._policy.add(result.policy_cost, result.seed)
        self._other.add(result.other_cost, result.seed)
        if result.failed:
            self._failed.add(result.policy_cost, result.seed)
            self._failed.add(result.other_cost, result.seed)
        self._without_price += result.unpriced

    def to_json(self) -> dict[str, Json]:
        """Return the costs as JSON for a summary. Unknown costs are None.

        `policy` is the cost of the policy's model. `other` is the cost of judges and of models that environments call.
        `of_failed` is the part of `total` that failed rollouts cost. `without_price` counts rollouts with tokens of unknown
        price.
        """
        known = len(self._policy) + len(self._other)
        return {
            "policy": self._policy.total if len(self._policy) else None,
            "other": self._other.total if len(self._other) else None,
            "total": self._policy.total + self._other.total if known else None,
            "of_failed": self._failed.total if known else None,
            "without_price": self._without_price,
        }


def _add_all(columns: dict[str, Column], values: Mapping[str, float | None], seed: int) -> None:
    for name, value in values.items():
        columns.setdefault(name, Column()).add(value, seed)


def _as_json(columns: Mapping[str, Column]) -> dict[str, Json]:
    return {name: column.to_json() for name, column in columns.items()}


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Return the probability that at least one of k samples passes. Raises ValueError if k is not in [1, samples]."""
    # 1 - C(n - c, k) / C(n, k), the share of all subsets of k of the n samples, is unbiased: Chen et al. 2021,
    # "Evaluating Large Language Models Trained on Code", arXiv:2107.03374
    _check(samples, passed, k)
    return 1 - math.comb(samples - passed, k) / math.comb(samples, k)


def pass_hat_k(samples: int, passed: int, k: int) -> float:
    """Return the probability that all k samples pass (pass^k). Raises ValueError if k is not in [1, samples]."""
    # C(c, k) / C(n, k), unbiased for the same reason: Yao et al. 2024, "τ-bench", arXiv:2406.12045
    _check(samples, passed, k)
    return math.comb(passed, k) / math.comb(samples, k)


def _check(samples: int, passed: int, k: int) -> None:
    if not (0 <= passed <= samples and 1 <= k <= samples):
        raise ValueError(
            f"{passed} of {samples} samples passed, k={k}: expected 0 <= passed <= samples, 1 <= k <= samples"
        )


def shown_ks(most: int) -> list[int]:
    """Return each k up to EVERY_K_UP_TO, then repeated doublings, and at the end `most`."""
    doubles = [EVERY_K_UP_TO << power for power in range(1, 20)]
    return sorted({*range(1, min(EVERY_K_UP_TO, most) + 1), *(k for k in doubles if k < most), most}) if most else []


class PassRates:
    """The number of samples and passes, by seed. A scored sample passes if its reward is at least `at`."""

    def __init__(self, at: float = PASS_AT) -> None:
        self.at = at
        self._seeds: dict[int, tuple[int, int]] = {}

    def add(self, reward: float, seed: int) -> None:
        """Count a scored sample."""
        samples, passed = self._seeds.get(seed, (0, 0))
        self._seeds[seed] = samples + 1, passed + (reward >= self.at)

    def to_json(self) -> dict[str, Json]:
        """Return the rates as JSON for a summary.

        For each k, they are means over seeds with at least k scored samples.
        """
        counts = list(self._seeds.values())
        rates: dict[str, Json] = {}
        for k in shown_ks(max((samples for samples, _ in counts), default=0)):
            enough = [(samples, passed) for samples, passed in counts if samples >= k]
            rates[str(k)] = {
                "pass_at_k": _mean([pass_at_k(samples, passed, k) for samples, passed in enough]),
                "pass_hat_k": _mean([pass_hat_k(samples, passed, k) for samples, passed in enough]),
                "seeds": len(enough),
            }
        return {
            "at": self.at,
            "samples": sum(samples for samples, _ in counts),
            "passed": sum(passed for _, passed in counts),
            "k": rates,
        }


def _mean(of_seeds: list[float]) -> dict[str, Json]:
    values = array("d", of_seeds)
    error = clustered_standard_error(values, range(len(values)))
    return {"mean": math.fsum(values) / len(values), "standard_error": error}
