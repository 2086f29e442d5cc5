"""What steps are worth while their episode is still under way, for callers that need a reward at each step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from taskapp_kit.declare.specs import AppSpec, EnvironmentSpec
from taskapp_kit.records.awaiting import finished
from taskapp_kit.records.scorecard import Blend
from taskapp_kit.records.trajectory import PlayedStep

KNOWN_AT_A_STEP = frozenset({"step", "task", "config"})
"""What a criterion of events may read to be computed at its step; others are counted at the end."""


class StepRewards:
    """Computes `env · reward` and `event · score · weight` of steps, in the environment's thread.

    A criterion that raises here, or returns no finite number, adds nothing: `score` runs it again at the episode's end and
    reports it there. blend: the request's own formula; None uses the app's.
    """

    def __init__(
        self, app: AppSpec, environment: EnvironmentSpec, blend: Blend | None, task: Any, config: Mapping[str, Any]
    ) -> None:
        self._blend = blend or app.blend_for(environment.name)
        self._given: dict[str, Any] = {"task": task, "config": dict(config)}
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
