"""The answer of `POST /rollout` for a stored rollout, as far as the store has it."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from taskapp_kit.contract.content import as_object
from taskapp_kit.contract.events import fold, from_json
from taskapp_kit.contract.protocols import Store, StoredResult, StoredRollout
from taskapp_kit.contract.result import Rollout, Story
from taskapp_kit.contract.scorecard import RolloutSummary, Scorecard
from taskapp_kit.contract.wire import EnvSpec, PolicySpec, RolloutRequest
from taskapp_kit.errors import Failure, StoreError
from taskapp_kit.rollout.groups import pictures_of
from taskapp_kit.rollout.outcome import usage_of
from taskapp_kit.rollout.response import response_body


async def settled_from(store: Store, stored: StoredRollout) -> StoredResult:
    """What came of a stored rollout: its failure, or its answer as with `record.trajectories`.

    Members of the answer that the store lacks are null; what is private is not looked at. Raises StoreError.
    """
    if stored.failure is not None:
        failure = Failure(**{"hint": "", **stored.failure})  # as `stored_record.py` writes it
        return StoredResult(stored.rollout_id, failure=failure)
    blobs = await pictures_of(store, stored)
    try:
        return StoredResult(stored.rollout_id, answer=await asyncio.to_thread(_answer, stored, blobs))
    except (ValueError, KeyError, TypeError) as fault:
        raise StoreError(
            f"rollout {stored.rollout_id!r} is in the store but cannot be read: {type(fault).__name__}.",
            hint="The store is damaged; restore it from a copy.",
        ) from fault


def _answer(stored: StoredRollout, blobs: dict[str, bytes]) -> bytes:
    events = [from_json(event, blobs) for event in stored.events]
    trajectory = fold(events)
    card = Scorecard.from_json(stored.scorecard or {})
    request = RolloutRequest.model_construct(  # it was checked when it was played, by the rules of that release
        run_id=stored.run_id,
        group_id=stored.group_id,
        env=EnvSpec.model_construct(env_name=stored.environment, seed=stored.seed, config=stored.config),
        policy=PolicySpec.model_construct(config=stored.policy),
        ops=[],
        mode=stored.mode,
    )
    body = response_body(
        Rollout(
            rollout_id=stored.rollout_id,
            request=request,
            created_at=stored.created_at,
            story=Story(events, trajectory),
            numbers=RolloutSummary(
                environment=stored.environment,
                split=stored.split,
                seed=stored.seed,
                status=stored.status,
                length=stored.length,
                total_reward=stored.total_reward,
                reward=stored.reward,
                outcome_score=stored.outcome_score,
                events_score=stored.events_score,
                metrics={**trajectory.metrics, **card.metrics},
            ),
            scorecard=card,
            digest=stored.digest or "",
            observation_digest=stored.observation_digest,
            policy=str(stored.policy.get("name")),
            ops_executed=0,
            timing=stored.timing,
            usage=usage_of(trajectory),
            versions={
                "kit": stored.kit_version,
                "app": stored.app_version,
                "git": None,
                "environment": stored.environment_version,
            },
        )
    )
    _without_what_is_not_stored(body)
    return orjson.dumps(body, default=as_object)


def _without_what_is_not_stored(body: dict[str, Any]) -> None:
    """The caller's labels and output mode, the operations done and the warnings."""
    (trajectory,) = body["trajectories"]
    trajectory["env_id"] = trajectory["policy_id"] = None
    for step in trajectory["steps"]:
        step["output_mode"] = None
    body["ops_executed"] = None
    body["pipeline_metadata"]["warnings"] = None
