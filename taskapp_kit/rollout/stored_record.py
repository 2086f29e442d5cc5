"""A rollout as it is kept: which parts, under which names, and which never."""

from __future__ import annotations

from collections import OrderedDict

from taskapp_kit.contract.content import Json
from taskapp_kit.contract.events import SCHEMA_VERSION, EncodedEvents
from taskapp_kit.contract.inference_url import inference_url, stored_url
from taskapp_kit.contract.protocols import StoredRollout
from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.declare.tasks import row_hash
from taskapp_kit.rollout.outcome import Outcome
from taskapp_kit.rollout.policy.select import KEPT_CONFIG
from taskapp_kit.rollout.request import PlannedRollout
from taskapp_kit.version import __version__

PICTURE_MEMORY_BYTES = 64 * 1024 * 1024
"""Without a store, pictures that answers only name are kept this far; the oldest go first."""


def stored_rollout(
    spec: AppSpec,
    planned: PlannedRollout,
    outcome: Outcome,
    events: EncodedEvents,
    *,
    rollout_id: str,
    created_at: float,
    timing: dict[str, float],
    pictures: dict[str, bytes],
    key_label: str | None,
) -> StoredRollout:
    """The row of a rollout. Of `policy.config` an allow-list, of the task a hash, of the end state the private column."""
    request, plan = planned.request, planned.plan
    card, failure = outcome.scorecard, outcome.failure
    config = request.policy.config
    kept = {name: config[name] for name in KEPT_CONFIG if name in config}
    kept["name"] = plan.policy
    url = inference_url(config, request.inference_url)
    if url is not None:
        kept["inference_url"] = stored_url(url)
    return StoredRollout(
        rollout_id=rollout_id,
        run_id=request.run_id,
        group_id=request.group_id,
        created_at=created_at,
        app=spec.name,
        app_version=spec.version,
        environment=outcome.environment,
        environment_version=outcome.version,
        split=outcome.split,
        seed=outcome.seed,
        config=plan.config,
        policy=kept,
        mode=request.mode,
        status=outcome.status,
        stop_reason=outcome.stop_reason,
        length=outcome.length,
        total_reward=outcome.total_reward,
        events=events,
        spec_hash=spec.hash,
        kit_version=__version__,
        schema_version=SCHEMA_VERSION,
        row_hash=row_hash(plan.task) if plan.task is not None else None,
        reward=card.reward if card is not None else None,
        outcome_score=card.outcome_score if card is not None else None,
        events_score=card.events_score if card is not None else None,
        digest=outcome.digest,
        observation_digest=outcome.observation_digest,
        tokens=outcome.tokens,
        cost=outcome.cost,
        scorecard=card.to_json() if card is not None else None,
        failure=None
        if failure is None
        else {
            "boundary": failure.boundary,
            "code": failure.code,
            "message": failure.message,
            "error_id": failure.error_id,
        },
        private=_private(outcome),
        timing=timing,
        seconds=timing["total"],
        key_label=key_label,
        blobs=pictures,
    )


def _private(outcome: Outcome) -> dict[str, Json]:
    """What no answer holds: the end state, and every call of a judge."""
    kept: dict[str, Json] = {}
    if outcome.final_state is not None:
        kept["final_state"] = outcome.final_state
    if outcome.second_calls:
        kept["second_calls"] = outcome.second_calls
    if outcome.judging:
        kept["judge_calls"] = outcome.judging.to_json()
    return kept


class ImageCache:
    """Pictures by their hash, as many bytes as `limit_bytes` hold: what `/blobs/{hash}` serves without a store."""

    def __init__(self, limit_bytes: int = PICTURE_MEMORY_BYTES) -> None:
        self._limit = limit_bytes
        self._pictures: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def keep(self, pictures: dict[str, bytes]) -> None:
        """Keeps them; the oldest make room."""
        for name, png in pictures.items():
            if name not in self._pictures:
                self._pictures[name] = png
                self._bytes += len(png)
        while self._bytes > self._limit:
            _, dropped = self._pictures.popitem(last=False)
            self._bytes -= len(dropped)

    def get(self, sha256: str) -> bytes | None:
        """PNG bytes; None when they are not kept (any more)."""
        return self._pictures.get(sha256)
