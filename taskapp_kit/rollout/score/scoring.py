"""Computes criteria, the outcome score and the blended reward. A score that could not be computed is null, never a number.

`StepRewards` computes rewards during the episode, for callers that need a reward after each step.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from taskapp_kit.declare.signature import finished
from taskapp_kit.declare.source_location import without_folder
from taskapp_kit.declare.specs import AppSpec, CriterionSpec, EnvironmentSpec
from taskapp_kit.records.content import Json
from taskapp_kit.records.protocols import RolloutRow
from taskapp_kit.records.scorecard import JUDGES_SKIPPED, Blend, CriterionScore, Grade, Scorecard, normalised
from taskapp_kit.records.trajectory import RESERVED_METRICS, PlayedStep, Trajectory
from taskapp_kit.rollout.score.failures import BadScore, ScoringFailed, failed, sentence
from taskapp_kit.rollout.score.judge_calls import REASON_CHARACTERS
from taskapp_kit.rollout.score.judge_input import cleaned, shortened
from taskapp_kit.rollout.score.judges import judge_scores
from taskapp_kit.rollout.score.private import masker
from taskapp_kit.wire.chat.conversation import ModelPort

__all__ = ["ScoringFailed", "aggregates", "blended", "score", "weighted"]

log = logging.getLogger("taskapp_kit.score")


def score(
    spec: AppSpec, trajectory: Trajectory, *, task: Any = None, config: Mapping[str, Json] | None = None,
    blend: Blend | None = None, models: ModelPort | None = None, skip_judges: bool = False,
) -> Scorecard:  # fmt: skip
    """Return the scorecard of one trajectory. Runs the author's functions, so call it in an environment's thread.

    task: the row with private fields. blend: the request's reward formula, or None for the app's formula. models: calls
    the judges' models. If it is None, no judge is configured. skip_judges: whether to skip all judges. A skipped judge
    with weight > 0 makes the outcome undefined.

    Judges are called last, so that a failing criterion causes no cost. An error in a criterion with weight 0 is recorded with
    a null score. Raises ScoringFailed if a criterion with weight > 0 raises or returns an invalid score, or if the time is up
    during a judge's call.
    """
    environment = trajectory.environment
    card = Scorecard(aggregation=spec.aggregation)
    given: dict[str, Any] = {
        "trajectory": trajectory,
        "task": task,
        "config": dict(config or trajectory.config),
        "answer_text": trajectory.answer_text,
    }

    def mask(reason: str) -> str:
        # created only if a grade has a reason, because the masker traverses the row
        return masker(spec, environment, task)(reason)

    outcome: list[CriterionScore] = []
    events: list[CriterionScore] = []
    for criterion in spec.criteria:
        if not criterion.applies_to(environment):
            continue
        if criterion.of == "events":
            events.append(_event_criterion(criterion, trajectory, given))
        else:
            outcome.append(_outcome_criterion(criterion, given, mask))
    if spec.judges:
        outcome += judge_scores(spec, environment, given, models, card.judging, skip=skip_judges)
    card.criteria = outcome + events
    card.outcome_score = weighted(outcome, spec.aggregation)
    weighed = [item for item in events if item.weight > 0]
    if weighed:
        scored = [item.score * item.weight for item in weighed if item.score is not None]
        card.events_score = _total(scored) if scored else None
    _metrics(spec, environment, given, card)
    formula = blend or spec.blend_for(environment)
    card.formula = formula.words()
    card.reward = blended(formula, trajectory.total_reward, card.events_score, card.outcome_score)
    parts = {"outcome_score": card.outcome_score, "events_score": card.events_score, card.formula: card.reward}
    for name, value in parts.items():
        if value is not None and not math.isfinite(value):
            raise failed(name, BadScore(f"is {value}, expected a finite number"))
    return card


def weighted(scores: Sequence[CriterionScore], aggregation: str = "weighted_sum") -> float | None:
    """Return the outcome score of normalized scores, which is Σ score·weight / Σ weight by default.

    The aggregation "sum" returns Σ score, and "custom" returns None. Scores of None are omitted from all sums. The result is
    0 if a `required` criterion is at the bottom of its scale, and None if Σ weight = 0 or a judge with weight > 0 was skipped.
    """
    if any(item.reason == JUDGES_SKIPPED and item.weight > 0 for item in scores):
        return None
    counted = [item for item in scores if item.normalised is not None and item.weight > 0]
    if not counted or aggregation == "custom":
        return None
    if any(item.required and item.normalised == 0 for item in counted):
        return 0.0
    if aggregation == "sum":
        return _total([item.normalised for item in counted if item.normalised is not None])
    heaviest = max(item.weight for item in counted)
    unit = 1.0 if 1e-100 < heaviest < 1e100 else heaviest  # scaled, because products and sums may overflow or underflow
    total = math.fsum(item.weight / unit for item in counted)
    return math.fsum(item.normalised * (item.weight / unit) for item in counted if item.normalised is not None) / total


def _total(values: Sequence[float]) -> float:
    """Return the exact sum, or infinity on overflow."""
    try:
        return math.fsum(values)
    except OverflowError:
        return math.inf


def blended(blend: Blend, returned: float, events: float | None, outcome: float | None) -> float | None:
    """Return `env·return + event·events_score + outcome·outcome_score`, or None if a part with weight > 0 is undefined."""
    total = blend.env * returned
    for weight, part in ((blend.event, events), (blend.outcome, outcome)):
        if weight > 0:
            if part is None:
                return None
            total += weight * part
    return total


def aggregates(spec: AppSpec, rollouts: Sequence[RolloutRow]) -> dict[str, float | dict[str, float] | None]:
    """Return the app's aggregates over finished rollouts of one environment. Raises ScoringFailed if an aggregate fails."""
    result: dict[str, float | dict[str, float] | None] = {}
    names = {item.environment for item in rollouts}
    for aggregate in spec.aggregates:
        chosen = [item for item in rollouts if aggregate.applies_to(item.environment)]
        if not chosen and names:
            continue
        try:
            value = finished(aggregate.function(chosen))
            result[aggregate.name] = (
                {str(key): checked_number(part, (-math.inf, math.inf)) for key, part in value.items()}
                if isinstance(value, Mapping)
                else None
                if value is None
                else checked_number(value, (-math.inf, math.inf))
            )
        except Exception as error:
            raise failed(f"aggregate {aggregate.name!r} ({without_folder(aggregate.place)})", error) from error
    return result


def _outcome_criterion(
    criterion: CriterionSpec, given: Mapping[str, Any], mask: Callable[[str], str]
) -> CriterionScore:
    item = CriterionScore(criterion.name, "outcome", None, criterion.weight, criterion.required)
    scale = criterion.scale if criterion.weight > 0 else (-math.inf, math.inf)

    def compute() -> float | None:
        value = finished(criterion.function(**{name: given[name] for name in criterion.parameters}))
        if isinstance(value, Grade):
            # cleaned and shortened, because the reason may repeat text that the policy wrote
            item.reason = shortened(mask(cleaned(str(value.reason))), REASON_CHARACTERS)
        return None if value is None else checked_number(value, scale)

    _timed(item, criterion, compute)
    item.normalised = normalised(item.score, criterion.scale)
    return item


def _event_criterion(criterion: CriterionSpec, trajectory: Trajectory, given: Mapping[str, Any]) -> CriterionScore:
    """Return the sum of a criterion over all steps, or only the last score if `accumulate` (a key of rubric files) is False."""
    item = CriterionScore(criterion.name, "events", None, criterion.weight, criterion.required)

    def compute() -> float | None:
        values: list[float] = []
        others = {name: given[name] for name in criterion.parameters if name in given}
        for step in trajectory.steps:
            if "step" in criterion.parameters:
                others["step"] = step
            value = finished(criterion.function(**others))
            if value is not None:
                values.append(checked_number(value, (-math.inf, math.inf)))
        if not values:
            return None if trajectory.steps else 0.0
        return math.fsum(values) if criterion.accumulate else values[-1]

    return _timed(item, criterion, compute)


def _timed(item: CriterionScore, criterion: CriterionSpec, compute: Callable[[], float | None]) -> CriterionScore:
    began = time.perf_counter()
    try:
        item.score = compute()
        if item.score is None:
            item.reason = "not_applicable"
    except BaseException as error:  # sys.exit() in an author's function must not end the server
        if criterion.weight > 0:
            raise failed(f"criterion {criterion.name!r} ({without_folder(criterion.place)})", error) from error
        item.error = sentence(error)
        log.warning("criterion %r with weight 0 failed: %s", criterion.name, item.error, exc_info=error)
    item.seconds = time.perf_counter() - began
    return item


def _metrics(spec: AppSpec, environment: str, given: Mapping[str, Any], card: Scorecard) -> None:
    """Add the app's metrics to the scorecard. Metrics have no weight, so a failing metric is only logged."""
    for metric in spec.metrics:
        if not metric.applies_to(environment):
            continue
        try:
            value = finished(metric.function(**{name: given[name] for name in metric.parameters}))
            if isinstance(value, Mapping):
                taken = sorted(RESERVED_METRICS.intersection(map(str, value)))
                for key, part in value.items():
                    if part is not None and str(key) not in RESERVED_METRICS:
                        card.metrics[str(key)] = checked_number(part, (-math.inf, math.inf))
                if taken:
                    raise BadScore(f"returned numbers with reserved names ({', '.join(taken)}), which were ignored")
            elif value is not None:
                card.metrics[metric.name] = checked_number(value, (-math.inf, math.inf))
        except BaseException as error:
            item = CriterionScore(metric.name, "metric", None, 0.0, error=sentence(error))
            card.criteria.append(item)
            log.warning("metric %r (%s) failed: %s", metric.name, metric.place, item.error, exc_info=error)


def checked_number(value: Any, scale: tuple[float, float]) -> float:
    """Return the score that an author's function returned. Raises BadScore unless it is a finite number within the scale."""
    try:
        if isinstance(value, (str, bytes, bytearray)):  # `float` would parse these types
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise BadScore(f"returned a {type(value).__name__}, expected a number or None") from None
    if not math.isfinite(number):
        raise BadScore(f"returned {number}, expected a finite number or None")
    if not scale[0] <= number <= scale[1]:
        raise BadScore(f"returned {number:g}, expected a number from {scale[0]:g} to {scale[1]:g}")
    return number


# A criterion of the whole episode would have a different value in each step.
KNOWN_AT_A_STEP = frozenset({"step", "task", "config"})
"""The parameters with which a criterion of events can be computed during the episode. Others are computed at the end."""


class StepRewards:
    """Computes `env · reward` and `event · score · weight` of steps, in the environment's thread.

    blend: the request's reward formula, or None for the app's formula. A criterion that raises, or does not return a finite
    number, adds nothing here. `score` runs the criterion again after the episode and reports the error.
    """

    def __init__(
        self, app: AppSpec, environment: EnvironmentSpec, blend: Blend | None, task: Any, config: Mapping[str, Any]
    ) -> None:
        self._blend = blend or app.blend_for(environment.name)
        self._given: dict[str, Any] = {"task": task, "config": dict(config)}
        # the criteria that can be computed before the end; the last step gets the rest
        self._criteria = [
            item
            for item in app.criteria
            if item.of == "events"
            and item.weight > 0
            and item.accumulate
            and item.applies_to(environment.name)
            and KNOWN_AT_A_STEP.issuperset(item.parameters)
        ]

    def __call__(self, steps: Sequence[PlayedStep]) -> dict[str, float]:
        """Return the parts `env` and `event` of the steps' reward."""
        env = sum(step.reward for step in steps if step.reward is not None)
        event = 0.0
        if self._blend.event:
            event = math.fsum(self._score(item, step) * item.weight for step in steps for item in self._criteria)
        return {"env": _finite(self._blend.env * env), "event": _finite(self._blend.event * event)}

    def _score(self, criterion: Any, step: PlayedStep) -> float:
        given = {**self._given, "step": step}
        try:
            value = finished(criterion.function(**{name: given[name] for name in criterion.parameters}))
            return 0.0 if value is None or isinstance(value, (str, bytes)) else _finite(float(value))
        except BaseException:  # sys.exit() in an author's function must not end the server
            return 0.0


def _finite(number: float) -> float:
    return number if math.isfinite(number) else 0.0
