"""Converts evaluated rollouts to rows, and rows to lines in `results.jsonl`, without observations and messages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from taskapp_kit.errors import Failure, TaskAppError
from taskapp_kit.records.content import Json
from taskapp_kit.records.declared_types import check_types
from taskapp_kit.records.protocols import RolloutRow
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.records.scorecard import TOKEN_COUNTS, known_sum

MESSAGE_LENGTH = 400
LONGEST_WORD = 1000
"""The maximum length of an id or name from a server, because each result line contains them."""


def row_of_answer(body: Mapping[str, Any], *, seed: int) -> RolloutRow:
    """Return the row of a response to `POST /rollout`. Raises KeyError, TypeError or ValueError for other JSON."""
    metrics, card = body["metrics"], body["scorecard"]
    details = dict(metrics["details"])
    if details.pop("seed") != seed:
        raise ValueError("it is for another seed")
    split = details.pop("split")
    details.pop("rubric", None)
    return RolloutRow(
        status=_one_of(body["status"], ("terminated", "truncated")),
        rollout_id=_word(body["rollout_id"]),
        environment=_word(body["pipeline_metadata"]["environment"]),
        split=_word(split),
        seed=seed,
        reward=_number(body["reward"]),
        outcome_score=_number(metrics["outcome_score"]),
        events_score=_number(metrics["events_score"]),
        total_reward=_some_number(metrics["mean_return"]),
        criteria={_word(item["name"]): _number(item["score"]) for item in card["criteria"] if item["of"] != "metric"},
        metrics={_word(name): _some_number(value) for name, value in details.items()},
        length=int(_some_number(metrics["num_steps"])),
        stop_reason=_word(body["stop_reason"]),
        digest=_word(body["digest"]),
        observation_digest=_some_word(body.get("observation_digest")),
        usage={_word(name): _some_number(count) for name, count in body["usage"].items()},
        seconds=_number(body["timing"].get("total")),
        policy_cost=_number(body["usage"].get("cost")),
        other_cost=known_sum(_number(item.get("cost")) for item in card["criteria"]),
    )


def row_of_failure(
    failure: Failure, *, seed: int, rollout_id: str, seconds: float | None, played: Rollout | None = None
) -> RolloutRow:
    """Return the row of a rollout that failed in this process. played: The rollout until its failure."""
    row = RolloutRow("failed", rollout_id, seed=seed) if played is None else played.row()
    return replace(
        row,
        status="failed",
        rollout_id=rollout_id,
        boundary=failure.boundary,
        code=failure.code,
        message=failure.message[:MESSAGE_LENGTH],
        seconds=seconds,
    )


def row_of_error(error: TaskAppError, *, seed: int, seconds: float) -> RolloutRow:
    """Return the row of a rollout that a server reported as failed."""
    code = error.code or f"status_{error.status}"
    message = (error.message.partition(f"({code}): ")[2] or error.message)[:MESSAGE_LENGTH]
    return RolloutRow(
        "failed", error.rollout_id, seed=seed, boundary=error.boundary, code=code, message=message, seconds=seconds
    )


_LINE = {
    name: name
    for name in (
        "status", "rollout_id", "environment", "split", "reward", "outcome_score", "events_score", "returned", "criteria",
        "metrics", "length", "stop_reason", "digest", "observation_digest", "boundary", "code", "message", "usage",
        "seconds", "cost", "other_cost", "models", "row", "created_at",
    )
} | {"returned": "total_reward", "cost": "policy_cost"}  # fmt: skip
"""Maps the fields of a line, in order, to the fields of a row."""


def line_of(row: RolloutRow, key: Mapping[str, Json]) -> bytes:
    """Return the row's line, including the newline. key: Identifies the rollout."""
    entry: dict[str, Any] = {"key": dict(key)}
    entry.update((name, getattr(row, member)) for name, member in _LINE.items())
    entry["returned"] = None if row.failed else row.total_reward
    entry["environment"], entry["split"] = row.environment or None, row.split or None
    return orjson.dumps(entry) + b"\n"


def row_of_line(entry: Mapping[str, Any]) -> RolloutRow:
    """Return the row of a line's JSON, which this or an earlier release wrote.

    Raises KeyError or TypeError if the line is malformed.
    """
    members = {member: entry[name] for name, member in _LINE.items() if entry.get(name) is not None}
    members |= {"status": entry["status"], "rollout_id": entry["rollout_id"], "seed": entry["key"]["seed"]}
    check_types(RolloutRow, members)
    row = RolloutRow(**members)
    add_sums(row)
    return row


def add_sums(row: RolloutRow) -> None:
    """Set the row's tokens and cost to the sums of their parts."""
    counts = [row.usage[name] for name in TOKEN_COUNTS if name in row.usage]
    row.tokens = int(sum(counts)) if counts else None
    row.cost = known_sum((row.policy_cost, row.other_cost))


def _number(value: Any) -> float | None:
    return None if value is None else _some_number(value)


def _some_number(value: Any) -> float:
    if not is_number(value):
        raise ValueError("it is not a finite number")
    return float(value)


def is_number(value: Any) -> bool:
    """Return whether a server's value is a finite number."""
    return not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)


def _word(value: Any) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_WORD:
        raise ValueError(f"it is not a string of at most {LONGEST_WORD} characters")
    return value


def _some_word(value: Any) -> str | None:
    return None if value is None else _word(value)


def _one_of(value: Any, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ValueError(f"{value!r} is not one of {known}")
    return str(value)
