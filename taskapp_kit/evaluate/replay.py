"""Replays stored rollouts with the recorded replies of their policies, and compares the results with the originals."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from taskapp_kit.errors import ConfigError, RolloutFailed, Unavailable
from taskapp_kit.records.difference import Difference, first_difference
from taskapp_kit.records.events import EpisodeRecord, Event, fold
from taskapp_kit.records.protocols import QueryableStore, RolloutQuery, Store, StoredRollout
from taskapp_kit.records.trajectory import Trajectory
from taskapp_kit.rollout.policy.builtin import ReplayPolicy
from taskapp_kit.rollout.policy.replay import as_stored, recording_of
from taskapp_kit.rollout.service import Service
from taskapp_kit.rollout.source import load_trajectory
from taskapp_kit.wire.rollout import RolloutRequest

PAGE = 500
"""The number of rollouts per query."""
REPEATABLE = ("environment", "scoring")
"""The boundaries of failures that a replay can reproduce."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A stored rollout and its replay.

    Attributes:
        rollout_id: The stored rollout's id.
        environment: The stored rollout's environment.
        split: The stored rollout's split.
        seed: The stored rollout's seed.
        digest: The stored rollout's digest.
        played_digest: The replay's digest, or None if the replay failed.
        observation_digest: The stored rollout's digest of observations.
        played_observation_digest: The replay's digest of observations, or None if the replay failed.
        difference: The first difference, or None if both are equal.
        problem: A sentence that describes the failure if only one of the two failed, or both failures if they differ.
        failed: A sentence that describes the failure if both failed in the same way.
    """

    rollout_id: str
    environment: str
    split: str
    seed: int
    digest: str
    played_digest: str | None
    observation_digest: str | None
    played_observation_digest: str | None
    difference: Difference | None
    problem: str | None = None
    failed: str | None = None

    @property
    def same(self) -> bool:
        """Whether the replayed episode equals the stored one."""
        return self.difference is None and self.problem is None


async def stored_ids(store: Store, app: str) -> list[str]:
    """Return the ids of an app's rollouts that can be compared, oldest first.

    Raises Unavailable if the store cannot list rollouts, and StoreError if it fails.
    """
    if not isinstance(store, QueryableStore):
        raise Unavailable("This store cannot list rollouts.", hint="Pass the rollout's id.")
    found: list[str] = []
    before: tuple[float, str] | None = None
    while True:
        page = await store.query(RolloutQuery(app=app, before=before, limit=PAGE))
        found += [row.rollout_id for row in page if row.status != "failed" and row.policy != "replay"]
        if len(page) < PAGE:
            return found[::-1]
        before = page[-1].created_at or 0.0, page[-1].rollout_id


async def replay_all(
    service: Service,
    store: Store,
    rollout_id: str | None,
    request_of: Callable[[str], RolloutRequest],
    on_failure: Callable[[RolloutFailed], object] = lambda failed: None,
) -> AsyncIterator[Compared]:
    """Replay one stored rollout. If `rollout_id` is None, replay all rollouts that did not fail, oldest first.

    request_of: Returns the request for an id. on_failure: See `replay`.

    Raises ConfigError if the rollout does not exist or its failure cannot be reproduced.
    """
    app = service.app.name
    for name in [rollout_id] if rollout_id is not None else await stored_ids(store, app):
        stored = await store.load(name)
        if stored is None or stored.app != app:
            raise ConfigError(
                f"The store has no rollout {name[:80]!r} of the app {app}.",
                hint="A rollout's id is in its response, in results.jsonl, and in GET /rollouts.",
            )
        boundary = (stored.failure or {}).get("boundary")
        if stored.status == "failed" and boundary not in REPEATABLE:
            raise ConfigError(
                f"The rollout {name} failed at boundary {boundary}, which a replay cannot reproduce.",
                hint=f"Choose a rollout that was scored, or that failed at boundary {' or '.join(REPEATABLE)}.",
            )
        yield await replay(service, store, stored, request_of(name), on_failure)


async def replay(
    service: Service,
    store: Store,
    stored: StoredRollout,
    requested: RolloutRequest,
    on_failure: Callable[[RolloutFailed], object] = lambda failed: None,
) -> Compared:
    """Play a stored rollout again in `service`, and compare the replay with the original.

    requested: The caller's description of the episode, which must match the stored rollout. on_failure: Called if the replay
    fails at a boundary other than `policy`.

    Raises RequestError with the code `replay_differs` if the request does not match.
    """
    was = await load_trajectory(store, stored)
    request = as_stored(requested, stored, service.spec).model_copy(update={"ops": _ops(stored, was)})
    policy = ReplayPolicy(recording_of(stored))
    events: list[Event] = []
    problem = how = digest = observation_digest = None
    try:
        played = await service.rollout(request, policy=policy, listener=events.append)
        digest, observation_digest, now = played.digest, played.observation_digest, played.trajectory
        if stored.failure is not None:
            problem = f"The stored rollout failed at {_place(stored.failure)}, but the replay did not fail."
    except RolloutFailed as failed:
        now = fold(events) if events else was
        place = _place(asdict(failed.failure))
        past_its_end = failed.boundary == "policy"
        if not past_its_end:
            on_failure(failed)
        if stored.failure is None:
            problem = f"The replay failed at {place}: {failed.message}"
        elif place == _place(stored.failure):
            how = f"failed at {place}: {failed.message}"
        elif past_its_end:
            problem = f"The stored rollout failed at {_place(stored.failure)}, but the replay continued."
        else:
            problem = f"The stored rollout failed at {_place(stored.failure)}, the replay at {place}: {failed.message}"
    difference = None
    if problem is not None or how is not None or digest != stored.digest:
        difference = first_difference(was, now)
    elif (
        None not in (stored.observation_digest, observation_digest) and stored.observation_digest != observation_digest
    ):
        difference = first_difference(was, now, pictures=True)
    if difference is None and problem is None and how is None and digest != stored.digest:
        difference = Difference("the whole", "digest", stored.digest, digest)
    return Compared(
        rollout_id=stored.rollout_id,
        environment=stored.environment,
        split=stored.split,
        seed=stored.seed,
        digest=stored.digest or "",
        played_digest=digest,
        observation_digest=stored.observation_digest,
        played_observation_digest=observation_digest,
        difference=difference,
        problem=problem,
        failed=how,
    )


def _place(failure: Mapping[str, Any]) -> str:
    """Describe where a rollout failed, such as `boundary environment (environment_raised)`."""
    return f"boundary {failure.get('boundary')} ({failure.get('code')})"


def _ops(stored: StoredRollout, was: Trajectory) -> list[Any]:
    """Return `ops` with the recorded scripted actions, or an empty list if the policy chose every action."""
    recorded = EpisodeRecord.of(stored.events).turns
    if not any(turn.scripted for turn in recorded):
        return []
    ops: list[Any] = []
    for stored_turn, turn in zip(recorded, was.turns, strict=True):
        (call,) = turn.answer.tool_calls if stored_turn.scripted else (None,)
        ops.append("agent" if call is None else {"type": "env", "tool": call.tool, "args": call.args})
    return ops if stored.stop_reason == "ops" else [*ops, "agent"]
