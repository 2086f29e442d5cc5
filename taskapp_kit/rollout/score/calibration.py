"""Compares judges with human labels, and reports agreement, biases, the spread between repeats, and cost.

A judge of single rollouts is called `repeats` times for each case, in separate calls even if it normally shares a call. A
group judge is called `repeats` times for each rotation of the answers. Every answer therefore appears in every position, so
that a preference for a position can be distinguished from a preference for an answer.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from taskapp_kit.declare.specs import AppSpec, JudgeSpec
from taskapp_kit.records.content import Json
from taskapp_kit.records.scorecard import JudgeRecord
from taskapp_kit.records.trajectory import Trajectory
from taskapp_kit.rollout.score.failures import ScoringFailed
from taskapp_kit.rollout.score.groups import score_group
from taskapp_kit.rollout.score.scoring import score
from taskapp_kit.wire.chat.conversation import ModelPort


@dataclass(frozen=True, slots=True)
class Case:
    """A labeled case. trajectories, labels: one of each, or several for a group judge. task: the row. place: file and line."""

    judge: JudgeSpec
    trajectories: tuple[Trajectory, ...]
    labels: tuple[float, ...]
    task: Any = None
    config: Mapping[str, Json] = field(default_factory=dict)
    place: str = ""


@dataclass(slots=True)
class CaseResult:
    """The judge's scores for a case, one for each trajectory. If the judge gave no verdict, the list is empty.

    error: why the judge gave no verdict. spreads: the highest minus the lowest score of each model's repeats. places: the mean
    score at each position in a group, from first to last.
    """

    case: Case
    scores: list[float] = field(default_factory=list)
    spreads: list[float] = field(default_factory=list)
    places: list[float] = field(default_factory=list)
    error: str | None = None
    record: JudgeRecord = field(default_factory=JudgeRecord)


def ask_about(spec: AppSpec, case: Case, models: ModelPort, *, repeats: int = 1) -> CaseResult:
    """Run the judge on the case. Blocks the calling thread, and calls the author's function."""
    members = len(case.trajectories)
    samples = repeats * members if case.judge.group else repeats
    # with a weight above 0, a missing verdict raises an exception
    judge = replace(case.judge, samples=samples, weight=1.0, call=None, required=False)
    alone = replace(spec, criteria=(), judges=(judge,), metrics=(), aggregates=(), reward=None)
    result = CaseResult(case)
    try:
        if judge.group:
            scored = score_group(alone, case.trajectories, task=case.task, config=case.config, models=models)
            result.record = scored.judging
            result.scores = [value for value in scored.scores if value is not None]
            result.places = _places(scored.judging, members)
        else:
            card = score(alone, case.trajectories[0], task=case.task, config=case.config, models=models)
            result.record = card.judging
            result.scores = [item.score for item in card.criteria if item.score is not None]
    except ScoringFailed as error:
        result.error, result.record = error.failure.message, error.judging
        return result
    if not result.scores:
        result.error = "the judge does not apply to this case"
    elif not judge.group:
        result.spreads = _spreads(result.record, judge.name)
    else:
        result.spreads = [value for value in scored.judgements[0].spreads if value is not None]
    return result


def _places(record: JudgeRecord, members: int) -> list[float]:
    verdicts = [call.verdict for call in record.calls if call.verdict is not None]
    return [statistics.fmean(one[f"answer_{place + 1}"]["score"] for one in verdicts) for place in range(members)]


def _spreads(record: JudgeRecord, name: str) -> list[float]:
    """Return the spread of each model's scores. Differences between models do not count, because they are not repeats."""
    of_role: dict[str, list[float]] = {}
    for call in record.calls:
        if call.verdict is not None:
            of_role.setdefault(call.role, []).append((call.verdict.get(name) or call.verdict)["score"])
    return [max(scores) - min(scores) for scores in of_role.values() if len(scores) > 1]


def report(results: Sequence[CaseResult], *, threshold: float | None = None) -> dict[str, Json]:
    """Return one judge's agreement with the labels, as JSON. Undefined numbers are None.

    accuracy, kappa: the agreement over the judge's choices. A judge without choices has two classes, which are scores of at
    least `threshold` (by default the middle of the scale) and lower scores. pairs: the share of pairs in a group
    whose scores are in the same order as their labels. spearman: the correlation of scores and labels. mean_difference: the
    mean of score minus label. length_bias: Spearman's correlation of an answer's length with score minus label.
    position_bias: the mean score at the first position minus the mean score at the last. repeat_spread: the mean of
    `spreads`.
    """
    judge = results[0].case.judge
    lowest, highest = judge.scale
    cut = (lowest + highest) / 2 if threshold is None else threshold
    judged = [result for result in results if result.error is None]
    scores = [score for result in judged for score in result.scores]
    labels = [label for result in judged for label in result.case.labels]
    lengths = [float(_length(item)) for result in judged for item in result.case.trajectories]
    differences = [score - label for score, label in zip(scores, labels, strict=True)]
    classes = [[_class(value, judge, cut) for value in values] for values in (scores, labels)]
    pairs = [pair_agreement(result.scores, result.case.labels) for result in judged if judge.group]
    compared = sum(all_ for _, all_ in pairs)
    spreads = [spread for result in judged for spread in result.spreads]
    placed = [result.places[0] - result.places[-1] for result in judged if result.places]
    calls = [call for result in results for call in result.record.calls]
    costs = [call.cost for call in calls]
    return {
        "judge": judge.name,
        "labels": len(labels),
        "failed": [
            {"place": result.case.place, "error": result.error} for result in results if result.error is not None
        ],
        "accuracy": accuracy(*classes),
        "kappa": kappa(*classes),
        "threshold": None if judge.choices else cut,
        "spearman": spearman(scores, labels),
        "pairs": sum(same for same, _ in pairs) / compared if compared else None,
        "mean_difference": statistics.fmean(differences) if differences else None,
        "length_bias": spearman(lengths, differences),
        "position_bias": statistics.fmean(placed) if placed else None,
        "repeat_spread": statistics.fmean(spreads) if spreads else None,
        "calls": len(calls),
        "unusable_answers": sum(call.verdict is None for call in calls),
        "tokens": sum(call.usage.get("prompt_tokens", 0) + call.usage.get("completion_tokens", 0) for call in calls),
        "cost": None if not costs or None in costs else sum(cost for cost in costs if cost is not None),
        "seconds": sum(call.seconds for call in calls),
    }


def _class(value: float, judge: JudgeSpec, cut: float) -> int:
    """Return the index of the nearest choice. Without choices, return 1 for values of at least `cut`, or else 0."""
    if not judge.choices:
        return int(value >= cut)
    lowest, highest = judge.scale
    return round((value - lowest) / (highest - lowest) * (len(judge.choices) - 1))


def _length(trajectory: Trajectory) -> int:
    """Return the length in characters of the policy's text, or of its actions' arguments if it wrote no text."""
    words = sum(len(turn.answer.output or "") for turn in trajectory.turns)
    return words or sum(len(str(step.args)) for step in trajectory.steps)


def accuracy(one: Sequence[Hashable], two: Sequence[Hashable]) -> float | None:
    """Return the share of pairs with equal values, or None for empty sequences."""
    return sum(a == b for a, b in zip(one, two, strict=True)) / len(one) if one else None


def kappa(one: Sequence[Hashable], two: Sequence[Hashable]) -> float | None:
    """Return Cohen's κ, which is 1 for full agreement and 0 for chance agreement, or None if chance agreement is already full."""
    observed = accuracy(one, two)
    if observed is None:
        return None
    ones, twos = Counter(one), Counter(two)
    chance = math.fsum(count * twos[value] for value, count in ones.items()) / len(one) ** 2
    return None if chance == 1.0 else (observed - chance) / (1.0 - chance)


def spearman(one: Sequence[float], two: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, with mean ranks for ties, or None for constant values or fewer than two pairs."""
    if len(one) < 2 or len(set(one)) < 2 or len(set(two)) < 2:
        return None
    return max(-1.0, min(1.0, statistics.correlation(_ranks(one), _ranks(two))))


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, starting from 1. Equal values get the mean of their ranks."""
    at: dict[float, list[int]] = {}
    for rank, value in enumerate(sorted(values), start=1):
        at.setdefault(value, []).append(rank)
    return [statistics.fmean(at[value]) for value in values]


def pair_agreement(scores: Sequence[float], labels: Sequence[float]) -> tuple[int, int]:
    """Count the pairs of labels that differ.

    Returns:
        The number of these pairs that the scores put in the same order as the labels, and the number of all these pairs.
    """
    same = differing = 0
    for a in range(len(labels)):
        for b in range(a):
            if labels[a] != labels[b]:
                differing += 1
                same += (scores[a] - scores[b]) * (labels[a] - labels[b]) > 0
    return same, differing
