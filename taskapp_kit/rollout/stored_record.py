"""The stored record of a rollout, from its result; and the result, a failure or an answer, from its stored record."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.declare.tasks import row_hash
from taskapp_kit.errors import Failure, StoreError
from taskapp_kit.records.content import Json, as_object
from taskapp_kit.records.events import SCHEMA_VERSION, EncodedEvents, from_json
from taskapp_kit.records.protocols import StoredResult, StoredRollout
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.records.scorecard import Scorecard
from taskapp_kit.rollout.episode.plan import EpisodePlan
from taskapp_kit.rollout.policy.select import STORED_CONFIG
from taskapp_kit.rollout.response import response_body
from taskapp_kit.rollout.source import ImageSource, images_of
from taskapp_kit.version import __version__
from taskapp_kit.wire.inference_url import correlation_id, inference_url, stored_url
from taskapp_kit.wire.rollout import EnvSpec, PolicySpec, RolloutRequest


def stored_rollout(
    spec: AppSpec, plan: EpisodePlan, result: Rollout, events: EncodedEvents, *, key_label: str | None
) -> StoredRollout:
    """Return the row: an allow-list of `policy.config`, a hash of the task, the end state in the private column."""
    request, card, failure = result.request, result.scorecard, result.failure
    config = request.policy.config
    # An allow-list: `policy.config` may hold keys and headers under any name.
    policy = {name: config[name] for name in STORED_CONFIG if name in config}
    policy["name"] = result.policy
    if result.inference_url is not None:
        policy["inference_url"] = stored_url(result.inference_url)
    return StoredRollout(
        rollout_id=result.rollout_id,
        run_id=request.run_id,
        group_id=request.group_id,
        created_at=result.created_at,
        app=spec.name,
        app_version=spec.version,
        environment=result.environment,
        environment_version=result.version,
        split=result.split,
        seed=result.seed,
        config=plan.config,
        policy=policy,
        mode=request.mode,
        status=result.status,
        stop_reason=result.stop_reason,
        length=result.length,
        total_reward=result.total_reward,
        events=events,
        spec_hash=spec.hash,
        kit_version=__version__,
        schema_version=SCHEMA_VERSION,
        # A hash, since the row has private fields; it tells a replay whether the same task is still there.
        row_hash=row_hash(plan.task) if plan.task is not None else None,
        reward=result.reward,
        outcome_score=card.outcome_score,
        events_score=card.events_score,
        digest=result.digest,
        observation_digest=result.observation_digest,
        tokens=result.tokens,
        cost=result.total_cost,
        scorecard=card.to_json() if failure is None else None,
        failure=None if failure is None else {name: getattr(failure, name) for name in _FAILURE},
        private=_private(result),
        timing=result.timing,
        seconds=result.timing["total"],
        key_label=key_label,
        blobs=result.pictures,
    )


_FAILURE = ("boundary", "code", "message", "error_id")
"""Members of a failure that are stored."""


def _private(result: Rollout) -> dict[str, Json]:
    """Return what no response contains: the end state, and every call of a judge."""
    private: dict[str, Json] = {}
    # In a column of its own, so that no query for a list or an answer can return it by accident.
    if result.final_state is not None:
        private["final_state"] = result.final_state
    if result.second_calls:
        private["second_calls"] = result.second_calls
    if result.judging:
        private["judge_calls"] = result.judging.to_json()
    return private


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
        # Built again by the code of the live answer, so that both have the same members.
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
    # Null and not a default: what was not stored must not look as if it had been.
    trajectory["env_id"] = trajectory["policy_id"] = None
    for step in trajectory["steps"]:
        step["output_mode"] = None
    body["ops_executed"] = None
    body["pipeline_metadata"]["warnings"] = None
