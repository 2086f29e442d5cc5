"""The stored record of a rollout, from its result."""

from __future__ import annotations

from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.declare.tasks import row_hash
from taskapp_kit.records.content import Json
from taskapp_kit.records.events import SCHEMA_VERSION, EncodedEvents
from taskapp_kit.records.protocols import StoredRollout
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.rollout.episode.plan import EpisodePlan
from taskapp_kit.rollout.policy.select import STORED_CONFIG
from taskapp_kit.version import __version__
from taskapp_kit.wire.inference_url import stored_url


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
