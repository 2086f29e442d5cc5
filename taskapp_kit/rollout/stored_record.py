"""Converts the result of a rollout to its stored row, and a stored row to the response of that rollout."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any

import orjson

from taskapp_kit.contract.content import Json, as_object
from taskapp_kit.contract.events import SCHEMA_VERSION, EncodedEvents, from_json
from taskapp_kit.contract.inference_url import correlation_id, inference_url, stored_url
from taskapp_kit.contract.protocols import Store, StoredResult, StoredRollout
from taskapp_kit.contract.result import Rollout
from taskapp_kit.contract.scorecard import Scorecard
from taskapp_kit.contract.wire import EnvSpec, PolicySpec, RolloutRequest
from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.declare.tasks import row_hash
from taskapp_kit.errors import Failure, StoreError
from taskapp_kit.rollout.episode.plan import EpisodePlan
from taskapp_kit.rollout.groups import pictures_of
from taskapp_kit.rollout.policy.select import STORED_CONFIG
from taskapp_kit.rollout.response import response_body
from taskapp_kit.version import __version__

PICTURE_MEMORY_BYTES = 64 * 1024 * 1024
"""Without a store, images that responses only reference are held up to this size; the oldest are dropped first."""


def stored_rollout(
    spec: AppSpec, plan: EpisodePlan, result: Rollout, events: EncodedEvents, *, key_label: str | None
) -> StoredRollout:
    """Return the row: an allow-list of `policy.config`, a hash of the task, the end state in the private column."""
    request, card, failure = result.request, result.scorecard, result.failure
    config = request.policy.config
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
    if result.final_state is not None:
        private["final_state"] = result.final_state
    if result.second_calls:
        private["second_calls"] = result.second_calls
    if result.judging:
        private["judge_calls"] = result.judging.to_json()
    return private


async def settled_from(store: Store, stored: StoredRollout) -> StoredResult:
    """Return the failure of a stored rollout, or its response as with `record.trajectories`.

    Members of the response that the store lacks are null; private columns are not read. Raises StoreError.
    """
    if stored.failure is not None:
        return StoredResult(stored.rollout_id, failure=Failure(**stored.failure))
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


class ImageCache:
    """Images by their hash, up to `limit_bytes`: served as `/blobs/{hash}` without a store."""

    def __init__(self, limit_bytes: int = PICTURE_MEMORY_BYTES) -> None:
        self._limit = limit_bytes
        self._pictures: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def add(self, pictures: dict[str, bytes]) -> None:
        """Add images; the oldest ones are dropped for them."""
        for name, png in pictures.items():
            if name not in self._pictures:
                self._pictures[name] = png
                self._bytes += len(png)
        while self._bytes > self._limit:
            _, dropped = self._pictures.popitem(last=False)
            self._bytes -= len(dropped)

    def get(self, sha256: str) -> bytes | None:
        """Return PNG bytes; None when they are not in the cache (any more)."""
        return self._pictures.get(sha256)
