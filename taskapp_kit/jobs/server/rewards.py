"""Computes the reward of a rollout from the task app's response, and summarizes the rewards of several rollouts.

A failed rollout has no reward, and a reward that cannot be computed is None. Both are excluded from means.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taskapp_kit.jobs.server.engine import RolloutOutcome
from taskapp_kit.records.formatting import counted
from taskapp_kit.records.statistics import clustered_standard_error

SAME = 1e-9
"""Rewards of a group that differ by less than this are considered equal."""
LARGEST = 1e100
"""The largest absolute value of a reward. With larger values, means and deviations could overflow."""
MAX_CAUSES = 20
MAX_SCORES = 50
"""How many criteria of a rollout and scores of an iteration are stored, because task apps choose the names."""
OTHERS = "others"


class UnreadableRollout(ValueError):
    """A response is not a valid rollout. The message states why."""


@dataclass(frozen=True, slots=True)
class RewardBlend:
    """The weights in `judge.reward_blend`.

    env: The weight of the return. event: The weight of the events score. outcome: The weight of the outcome score.
    """

    env: float = 1.0
    event: float = 0.0
    outcome: float = 0.0

    def words(self) -> str:
        """Return the formula of the reward."""
        parts = ((self.env, "mean_return"), (self.event, "events_score"), (self.outcome, "outcome_score"))
        return " + ".join(f"{weight:g}·{name}" for weight, name in parts if weight)


def reward_of(answer: Mapping[str, Any], blend: RewardBlend | None) -> float | None:
    """Return a rollout's reward, or None if it is undefined.

    It is computed with `blend` if the job has one. Otherwise it is the response's `reward`, or `metrics.mean_return` if the
    response lacks `reward`. Raises UnreadableRollout if the rollout was aborted, or if a value is absent or invalid.
    """
    metrics = answer.get("metrics")
    if not isinstance(metrics, Mapping):
        raise UnreadableRollout("the response has no `metrics`")
    if answer.get("aborted") is True:
        raise UnreadableRollout("the response reports that the rollout was aborted")
    if blend is None:
        if "reward" in answer:
            return _number(answer["reward"], "reward")
        return _number(metrics.get("mean_return"), "metrics.mean_return")
    total = 0.0
    for weight, name in (
        (blend.env, "mean_return"),
        (blend.event, "events_score"),
        (blend.outcome, "outcome_score"),
    ):
        if weight:
            value = _number(metrics.get(name), f"metrics.{name}")
            if value is None:
                return None
            total += weight * value
    return total if math.isfinite(total) else None


def scores_of(answer: Mapping[str, Any]) -> dict[str, float]:
    """Return the defined scores of a rollout: `outcome_score`, `events_score`, and `score_NAME` for each criterion."""
    metrics, card = answer["metrics"], answer.get("scorecard")
    scores = {name: metrics.get(name) for name in ("outcome_score", "events_score")}
    criteria = card.get("criteria") if isinstance(card, Mapping) else None
    for criterion in criteria[:MAX_SCORES] if isinstance(criteria, list) else ():
        if isinstance(criterion, Mapping) and isinstance(criterion.get("name"), str):
            scores[f"score_{criterion['name']}"] = criterion.get("score")
    return {name: float(value) for name, value in scores.items() if _is_number(value)}


def _number(value: Any, name: str) -> float | None:
    if value is None:
        return None
    if not _is_number(value):
        raise UnreadableRollout(f"`{name}` in the response is not a number from -1e100 to 1e100")
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def check_echo(answer: Mapping[str, Any], run_id: str, correlation_id: str) -> None:
    """Raise UnreadableRollout if the response has the `run_id` or `trace_correlation_id` of another request.

    Both fields are optional.
    """
    for name, sent in (("run_id", run_id), ("trace_correlation_id", correlation_id)):
        if answer.get(name) not in (None, "", sent):
            raise UnreadableRollout(f"the response is for another rollout: its `{name}` is not the value that was sent")


@dataclass(frozen=True, slots=True)
class Summary:
    """Statistics of the rollouts of one iteration or evaluation.

    Attributes:
        mean: The mean of the defined rewards, or None if all are undefined.
        spread: The standard deviation of these rewards, or None with fewer than 2.
        stderr: The standard error of the mean, clustered by seed, or None with fewer than 2 seeds.
        seeds: The number of seeds with a reward.
        undefined: The number of rollouts that did not fail but have no reward.
        failures: The number of failures by boundary, or by code if a failure has no boundary (see `causes`).
        flat_groups: The share of groups whose rewards are all equal, among groups with at least two rewards.
        scores: The mean of each score over the rollouts with that score.
    """

    rollouts: int
    scored: int
    undefined: int
    failed: int
    failures: Mapping[str, int]
    mean: float | None
    seeds: int
    stderr: float | None
    spread: float | None
    flat_groups: float | None
    scores: Mapping[str, float]

    def words(self) -> str:
        """Return a summary such as `reward 0.5 ± 0.1 over 8 rollouts of 4 seeds; 2 failed (policy 2)`."""
        text = "reward undefined" if self.mean is None else f"reward {self.mean:.4g}"
        if self.stderr is not None:
            text += f" ± {self.stderr:.2g}"
        text += f" over {counted(self.scored, 'rollout')}"
        if self.scored:
            text += f" of {counted(self.seeds, 'seed')}"
        if self.undefined:
            text += f"; {self.undefined} without a reward"
        if self.failed:
            causes = ", ".join(f"{name} {count}" for name, count in sorted(self.failures.items()))
            text += f"; {self.failed} failed ({causes})"
        return text


def causes(*found: Iterable[str] | Mapping[str, int]) -> dict[str, int]:
    """Return the number of failures for each cause, the most frequent cause first.

    Task apps choose the names of causes, so at most 20 are listed. The rest is counted as `others`.
    """
    counts: Counter[str] = Counter()
    for one in found:
        counts.update(one)
    rest = counts.pop(OTHERS, 0)
    common = dict(counts.most_common(MAX_CAUSES))
    rest += counts.total() - sum(common.values())
    return {**common, OTHERS: rest} if rest else common


def too_many_failed(
    failed: Sequence[RolloutOutcome], earlier: int, earlier_causes: Mapping[str, int], *, planned: int, share: float
) -> str | None:
    """Return an error message if more than `share` of the planned rollouts failed, and otherwise None.

    Args:
        failed: The failed rollouts of the current unit.
        earlier: The number of failures in earlier units.
        earlier_causes: The `causes` of these failures.
        planned: The number of rollouts until the end of the current unit.
        share: The largest acceptable share of failures.
    """
    count = earlier + len(failed)
    if not failed or count <= share * planned:
        return None
    (code, _), *_ = Counter((one.code, one.boundary) for one in failed).most_common(1)
    example = next(one for one in reversed(failed) if (one.code, one.boundary) == code)
    counts = causes(earlier_causes, (one.boundary or one.code for one in failed))
    shares = ", ".join(f"{cause} {number}" for cause, number in counts.items())
    return f"{count} of {planned} rollouts failed ({shares}), more than {share:.0%}. {example.message}"


def summarise(rollouts: Sequence[RolloutOutcome]) -> Summary:
    """Return the statistics of the rollouts. Rollouts with the same `place` are a group."""
    rewards = [one.reward for one in rollouts if one.reward is not None]
    seeds = [one.seed for one in rollouts if one.reward is not None]
    count = len(rewards)
    mean = math.fsum(rewards) / count if count else None
    spread = None
    if mean is not None and count > 1:
        spread = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / (count - 1))
    groups: dict[int, list[float]] = {}
    for one in rollouts:
        if one.reward is not None:
            groups.setdefault(one.place, []).append(one.reward)
    grown = [group for group in groups.values() if len(group) > 1]
    flat = [group for group in grown if max(group) - min(group) < SAME]
    failed = [one for one in rollouts if one.failed]
    scores: dict[str, list[float]] = {}
    for one in rollouts:
        for name, value in one.scores.items():
            if name in scores or len(scores) < MAX_SCORES:
                scores.setdefault(name, []).append(value)
    return Summary(
        rollouts=len(rollouts),
        scored=count,
        undefined=len(rollouts) - count - len(failed),
        failed=len(failed),
        failures=causes(one.boundary or one.code or "unknown" for one in failed),
        mean=mean,
        seeds=len(set(seeds)),
        stderr=clustered_standard_error(rewards, seeds),
        spread=spread,
        flat_groups=len(flat) / len(grown) if grown else None,
        scores={name: math.fsum(values) / len(values) for name, values in scores.items()},
    )
