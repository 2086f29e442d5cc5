"""One rollout's line in `results.jsonl`: its numbers, without observations or messages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from taskapp_kit.contract.chat import POLICY
from taskapp_kit.contract.content import Json
from taskapp_kit.contract.declared_types import check_types
from taskapp_kit.contract.model_use import ModelUse, known_sum, tokens_of
from taskapp_kit.contract.result import Rollout, RolloutResult
from taskapp_kit.contract.scorecard import RolloutSummary
from taskapp_kit.errors import Failure, TaskAppError

MESSAGE_LENGTH = 400
LONGEST_WORD = 1000
"""Longest id or name from a server: each result line contains them."""


@dataclass(slots=True)
class Result:
    """How one rollout ended.

    status: terminated, truncated or failed. reward and the scores are None when undefined, and of a failed one always.
    returned: sum of the step rewards. criteria: score by name. length: steps. boundary, code, message: of a failure;
    the boundary is None where a foreign server did not report it. observation_digest: None when no images were requested.
    usage: tokens, cost: US dollars, of the policy's model; a failed rollout has those until it failed. other_cost: of judges
    and of models that the environment called. A cost is None where no price is known, or nothing was called. models: what
    each model used, as far as it is known. seconds: wall
    time of the rollout, created_at: unix seconds, None where a server played it. row: short public fields of the task's row
    (see `rows.short_fields`).
    """

    status: str
    rollout_id: str
    environment: str = ""
    split: str = ""
    seed: int = 0
    reward: float | None = None
    outcome_score: float | None = None
    events_score: float | None = None
    returned: float | None = None
    criteria: dict[str, float | None] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    length: int | None = None
    stop_reason: str | None = None
    digest: str | None = None
    observation_digest: str | None = None
    boundary: str | None = None
    code: str | None = None
    message: str | None = None
    usage: dict[str, float] = field(default_factory=dict)
    seconds: float | None = None
    cost: float | None = None
    other_cost: float | None = None
    models: list[ModelUse] = field(default_factory=list)
    row: dict[str, Json] = field(default_factory=dict)
    created_at: float | None = field(default=None, compare=False)

    @property
    def failed(self) -> bool:
        """Whether it failed; then there is no reward."""
        return self.status == "failed"

    @property
    def unpriced(self) -> bool:
        """Whether the price of a call of the policy's model is not known."""
        calls = any(use["unpriced_calls"] for use in self.models if use["role"] == POLICY)
        return calls or (self.cost is None and tokens_of(self.usage) > 0)

    @classmethod
    def of_rollout(cls, rollout: Rollout) -> Result:
        """Of one that was played in this process, or in one of its workers."""
        card = rollout.scorecard
        return cls(
            status=rollout.status,
            rollout_id=rollout.rollout_id,
            environment=rollout.environment,
            split=rollout.split,
            seed=rollout.seed,
            reward=card.reward,
            outcome_score=card.outcome_score,
            events_score=card.events_score,
            returned=rollout.total_reward,
            criteria={item.name: item.score for item in card.criteria if item.of != "metric"},
            metrics={**rollout.metrics, **card.metrics},
            length=rollout.length,
            stop_reason=rollout.stop_reason,
            digest=rollout.digest,
            observation_digest=rollout.observation_digest,
            usage=dict(rollout.usage),
            seconds=rollout.timing.get("total"),
            cost=rollout.cost,
            other_cost=_other_cost(rollout),
            models=rollout.models,
            created_at=rollout.created_at,
        )

    @classmethod
    def of_answer(cls, body: Mapping[str, Any], *, seed: int) -> Result:
        """Creates the result from an answer of `POST /rollout`. Raises KeyError, TypeError, ValueError if it is not one."""
        metrics, card = body["metrics"], body["scorecard"]
        details = dict(metrics["details"])
        if details.pop("seed") != seed:
            raise ValueError("it is for another seed")
        split = details.pop("split")
        details.pop("rubric", None)
        return cls(
            status=_one_of(body["status"], ("terminated", "truncated")),
            rollout_id=_word(body["rollout_id"]),
            environment=_word(body["pipeline_metadata"]["environment"]),
            split=_word(split),
            seed=seed,
            reward=_number(body["reward"]),
            outcome_score=_number(metrics["outcome_score"]),
            events_score=_number(metrics["events_score"]),
            returned=_some_number(metrics["mean_return"]),
            criteria={
                _word(item["name"]): _number(item["score"]) for item in card["criteria"] if item["of"] != "metric"
            },
            metrics={_word(name): _some_number(value) for name, value in details.items()},
            length=int(_some_number(metrics["num_steps"])),
            stop_reason=_word(body["stop_reason"]),
            digest=_word(body["digest"]),
            observation_digest=_some_word(body.get("observation_digest")),
            usage={_word(name): _some_number(count) for name, count in body["usage"].items()},
            seconds=_number(body["timing"].get("total")),
            cost=_number(body["usage"].get("cost")),
            other_cost=known_sum(_number(item.get("cost")) for item in card["criteria"]),
        )

    @classmethod
    def of_failure(
        cls,
        failure: Failure,
        *,
        seed: int,
        rollout_id: str,
        seconds: float | None,
        played: RolloutResult | None = None,
    ) -> Result:
        """Creates the result of a rollout that failed here. played: what was played of it."""
        message = failure.message[:MESSAGE_LENGTH]
        return cls(
            "failed",
            rollout_id,
            seed=seed,
            boundary=failure.boundary,
            code=failure.code,
            message=message,
            seconds=seconds,
            environment="" if played is None else played.environment,
            split="" if played is None else played.split,
            length=None if played is None else played.length,
            stop_reason=None if played is None else played.stop_reason or None,
            usage={} if played is None else dict(played.usage),
            cost=None if played is None else played.cost,
            other_cost=None if played is None else _other_cost(played),
            models=[] if played is None else played.models,
            created_at=None if played is None else played.created_at,
        )

    @classmethod
    def of_error(cls, error: TaskAppError, *, seed: int, seconds: float) -> Result:
        """Creates the result of a rollout that a server reported as failed."""
        code = error.code or f"status_{error.status}"
        return cls(
            "failed",
            error.rollout_id,
            seed=seed,
            boundary=error.boundary,
            code=code,
            message=(error.message.partition(f"({code}): ")[2] or error.message)[:MESSAGE_LENGTH],
            seconds=seconds,
        )

    @property
    def summary(self) -> RolloutSummary:
        """The input of an aggregate, for a rollout that did not fail."""
        return RolloutSummary(
            environment=self.environment,
            split=self.split,
            seed=self.seed,
            status=self.status,
            length=self.length or 0,
            total_reward=self.returned or 0.0,
            reward=self.reward,
            outcome_score=self.outcome_score,
            events_score=self.events_score,
            metrics=self.metrics,
        )

    def line(self, key: Mapping[str, Json]) -> bytes:
        """The line, with its line end. key: identifies the rollout."""
        entry: dict[str, Any] = {"key": dict(key)}
        entry.update((name, getattr(self, name)) for name in self.__slots__ if name != "seed")
        entry["environment"], entry["split"] = self.environment or None, self.split or None
        return orjson.dumps(entry) + b"\n"

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> Result:
        """The inverse of `line`, from the line's JSON. Raises KeyError, TypeError."""
        known = {name: entry[name] for name in cls.__slots__ if name in entry}
        known["environment"], known["split"] = entry["environment"] or "", entry["split"] or ""
        known["seed"] = entry["key"]["seed"]
        check_types(cls, known)
        return cls(**known)


def _other_cost(rollout: RolloutResult) -> float | None:
    return known_sum(use["cost"] for use in rollout.models if use["role"] != POLICY)


def _number(value: Any) -> float | None:
    return None if value is None else _some_number(value)


def _some_number(value: Any) -> float:
    if not is_number(value):
        raise ValueError("it is not a finite number")
    return float(value)


def is_number(value: Any) -> bool:
    """Whether a server's value is a finite number."""
    return not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)


def _word(value: Any) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_WORD:
        raise ValueError(f"it is not text of at most {LONGEST_WORD} characters")
    return value


def _some_word(value: Any) -> str | None:
    return None if value is None else _word(value)


def _one_of(value: Any, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ValueError(f"{value!r} is not one of {known}")
    return str(value)
