"""The ranges of rewards and criterion scores that an app's declarations imply."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from taskapp_kit.records.content import Json
from taskapp_kit.records.statistics import UNBOUNDED, Range


@dataclass(frozen=True, slots=True)
class ScoreRanges:
    """The lowest and highest possible reward and criterion scores of a rollout, as far as the declarations imply them."""

    reward: Range = UNBOUNDED
    criteria: Mapping[str, Range] = field(default_factory=dict)

    @classmethod
    def of_task_info(cls, info: Mapping[str, Any], aggregation: Any) -> ScoreRanges:
        """Derive the ranges from a `/task_info` response and the outcome's aggregation.

        If the response is malformed, the ranges are unbounded.
        """
        try:
            weights, outcome = info["reward"], info["rubric"]["outcome"] or {"criteria": []}
            criteria = {item["id"]: _range(item["scale"]) for item in outcome["criteria"]}
            highest = (
                1.0 if aggregation == "weighted_sum" else float(sum(item["weight"] > 0 for item in outcome["criteria"]))
            )
            # The configuration of a request may change the declared number of steps.
            steps = math.inf if info["config_schema"].get("properties") else info["limits"]["max_steps"] or math.inf
            low, high = _range(weights["step_range"] or (None, None))
            returned = (min(0.0, low) and low * steps, max(0.0, high) and high * steps)
            parts = [(weights["env"], returned), (weights["event"], UNBOUNDED), (weights["outcome"], (0.0, highest))]
            reward = (
                sum(weight * part[0] for weight, part in parts if weight),
                sum(weight * part[1] for weight, part in parts if weight),
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            return cls()
        return cls(reward, criteria)

    def to_json(self) -> dict[str, Json]:
        """Return the ranges as JSON for an evaluation's `config.json`. A missing bound is null."""
        return {
            "reward": _bounds(self.reward),
            "criteria": {name: _bounds(scale) for name, scale in self.criteria.items()},
        }

    @classmethod
    def from_json(cls, body: Any) -> ScoreRanges:
        """Create the ranges from the result of `to_json`. If `body` is malformed, the ranges are unbounded."""
        try:
            return cls(_range(body["reward"]), {name: _range(scale) for name, scale in body["criteria"].items()})
        except (AttributeError, KeyError, TypeError, ValueError):
            return cls()


def _range(bounds: Any) -> Range:
    low, high = (unknown if bound is None else float(bound) for bound, unknown in zip(bounds, UNBOUNDED, strict=True))
    if not low <= high:
        raise ValueError(f"{low} is above {high}")
    return low, high


def _bounds(scale: Range) -> list[Json]:
    return [bound if math.isfinite(bound) else None for bound in scale]
