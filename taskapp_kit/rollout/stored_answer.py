"""The result of a rollout, from its stored record: its failure, or the answer of `POST /rollout`."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from taskapp_kit.errors import Failure, StoreError
from taskapp_kit.records.content import as_object
from taskapp_kit.records.events import from_json
from taskapp_kit.records.protocols import StoredResult, StoredRollout
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.records.scorecard import Scorecard
from taskapp_kit.rollout.response import response_body
from taskapp_kit.rollout.source import ImageSource, images_of
from taskapp_kit.wire.inference_url import correlation_id, inference_url
from taskapp_kit.wire.rollout import EnvSpec, PolicySpec, RolloutRequest


async def settled_from(images: ImageSource, stored: StoredRollout) -> StoredResult:
    """Return the failure of a stored rollout, or its response as with `record.trajectories`.

    Members of the response that the store lacks are null; private columns are not read. Raises StoreError.
    """
    if stored.failure is not None:
        return StoredResult(stored.rollout_id, failure=Failure(**stored.failure))
    blobs = await images_of(images, stored)
    try:
        return StoredResult(stored.rollout_id, answer=await asyncio.to_thread(_answer, stored, blobs))
    except (ValueError, KeyError, TypeError) as fault:
        raise StoreError(
            f"rollout {stored.rollout_id!r} is in the store but cannot be read: {type(fault).__name__}.",
            hint="The store is damaged; restore it from a copy.",
        ) from fault


def _answer(stored: StoredRollout, blobs: dict[str, bytes]) -> bytes:
    events = [from_json(event, blobs) for event in stored.events]
    card = Scorecard.from_json(stored.scorecard or {})
    request = RolloutRequest.model_construct(  # it was validated when it ran, by the rules of that release
        run_id=stored.run_id,
        group_id=stored.group_id,
        env=EnvSpec.model_construct(env_name=stored.environment, seed=stored.seed, config=stored.config),
        policy=PolicySpec.model_construct(config=stored.policy),
        ops=[],
        mode=stored.mode,
    )
    url = inference_url(stored.policy, None)
    body = response_body(
        Rollout.of_events(
            request,
            str(stored.policy.get("name")),
            events,
            inference_url=url,
            correlation_id=correlation_id(stored.policy, url, None),
            scorecard=card,
            digest=stored.digest or "",
            observation_digest=stored.observation_digest,
            rollout_id=stored.rollout_id,
            created_at=stored.created_at,
            timing=stored.timing,
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
    """Remove the caller's labels and output mode, the number of operations and the warnings, which are not stored."""
    (trajectory,) = body["trajectories"]
    trajectory["env_id"] = trajectory["policy_id"] = None
    for step in trajectory["steps"]:
        step["output_mode"] = None
    body["ops_executed"] = None
    body["pipeline_metadata"]["warnings"] = None
