"""Converts the answer of `GET /rollouts/{id}?events=1` back to a stored rollout, as far as an answer goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskapp_kit.client.event_decoding import read_events
from taskapp_kit.errors import TaskAppError
from taskapp_kit.records.events import SCHEMA_VERSION
from taskapp_kit.records.model_use import known_sum
from taskapp_kit.records.protocols import RolloutRow, StoredRollout


def stored_from_answer(body: Mapping[str, Any], row: RolloutRow | None = None) -> StoredRollout:
    """The rollout of an answer with events, or of a failure's envelope with its `trace`.

    row: of a list, for what an answer lacks. Members that neither has are empty; so is `private` but for the calls of
    judges and auxiliary models. Raises TaskAppError for an answer that is not one.
    """
    try:
        return _stored(body, row)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as fault:
        raise TaskAppError(
            f"The server's answer is not a rollout with its events: {type(fault).__name__}.",
            status=200,
            code="bad_answer",
            hint="Is that the address of a task app of this release?",
        ) from fault


def _stored(body: Mapping[str, Any], row: RolloutRow | None) -> StoredRollout:
    failed = "trajectories" not in body
    trace = body["trace"] if failed else body["trajectories"][0]["trace"]
    events = read_events({"trajectories": [{"trace": trace}]})
    error = body["detail"]["error"] if failed else None
    first = events[0]
    ended: Mapping[str, Any] = next((event for event in reversed(events) if event["kind"] == "ended"), {})
    steps = [event["step"] for event in events if event["kind"] == "stepped"]
    answers = [event["answer"] for event in events if event["kind"] == "answered"]
    costs = [(answer.get("details") or {}).get("cost") for answer in answers]
    model = next((name for answer in answers if (name := (answer.get("details") or {}).get("model"))), None)
    meta = body.get("pipeline_metadata") or {}
    versions = body.get("versions") or {}
    timing = body.get("timing") or {}
    policy = {"name": first["policy"], "model": row.model if row is not None else model}
    if meta.get("inference_url"):
        policy["inference_url"] = meta["inference_url"]
    card = body.get("scorecard")
    return StoredRollout(
        rollout_id=str(error["rollout_id"] if error is not None else body["rollout_id"]),
        run_id=str(body.get("run_id") or (row.run_id if row is not None else "") or ""),
        created_at=(row.created_at if row is not None else None) or 0.0,
        app="",
        app_version=str(versions.get("app") or ""),
        environment=first["environment"],
        environment_version=first["version"],
        split=first["split"],
        seed=first["seed"],
        config=first["config"],
        policy={name: value for name, value in policy.items() if value is not None},
        mode="",
        status="failed" if failed else body["status"],
        stop_reason=str(
            ended.get("stop_reason") or (error["code"] if error is not None else body.get("stop_reason")) or ""
        ),
        length=len(steps),
        total_reward=float(sum(step["reward"] for step in steps if step.get("reward") is not None)),
        events=events,
        spec_hash="",
        kit_version=str(versions.get("kit") or ""),
        schema_version=SCHEMA_VERSION,
        group_id=body.get("group_id"),
        reward=body.get("reward"),
        outcome_score=None if card is None else card.get("outcome_score"),
        events_score=None if card is None else card.get("events_score"),
        digest=body.get("digest"),
        observation_digest=body.get("observation_digest"),
        scorecard=card,
        failure=None
        if error is None
        else {name: error.get(name) for name in ("boundary", "code", "message", "error_id", "hint")},
        private={
            name: trace[shown]
            for shown, name in (("judge_calls", "judge_calls"), ("auxiliary_calls", "second_calls"))
            if trace.get(shown)
        },
        timing=timing,
        seconds=float(timing.get("total") or (row.seconds if row is not None else None) or 0.0),
        tokens=row.tokens if row is not None else None,
        cost=row.cost if row is not None else known_sum(costs),
    )
