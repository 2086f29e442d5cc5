"""Replays stored rollouts from their recorded answers, and compares them with the originals."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from taskapp_kit.contract.content import Content, Json, without_images
from taskapp_kit.contract.events import Event, content_to_json, fold
from taskapp_kit.contract.protocols import QueryableStore, RolloutQuery, Store, StoredRollout
from taskapp_kit.contract.trajectory import Trajectory, Turn
from taskapp_kit.contract.wire import RolloutRequest
from taskapp_kit.errors import ConfigError, RolloutFailed, Unavailable
from taskapp_kit.rollout.groups import load_trajectory
from taskapp_kit.rollout.policy.builtin import ReplayPolicy
from taskapp_kit.rollout.policy.replay import as_stored, recording_of
from taskapp_kit.rollout.service import Service

PAGE = 500
"""Rollouts that are listed in one query."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of a replay. where: `step 3` (counted from 1), `the first observation`, `the end`."""

    where: str
    what: str
    was: Json
    now: Json


@dataclass(frozen=True, slots=True)
class Compared:
    """A stored rollout and its replay.

    digest, observation_digest: stored; played_digest, played_observation_digest: of the replay, None when it failed.
    problem: why the replay failed, in a sentence. difference: None when both are equal.
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

    @property
    def same(self) -> bool:
        """Whether the replayed episode equals the stored one."""
        return self.difference is None and self.problem is None


async def stored_ids(store: Store, app: str) -> list[str]:
    """The ids of an app's rollouts that have a digest to compare, oldest first. Raises Unavailable, StoreError."""
    if not isinstance(store, QueryableStore):
        raise Unavailable("This store cannot list rollouts.", hint="Name the rollout by its id.")
    found: list[str] = []
    before: tuple[float, str] | None = None
    while True:
        page = await store.query(RolloutQuery(app=app, before=before, limit=PAGE))
        found += [row.rollout_id for row in page if row.status != "failed" and row.policy != "replay"]
        if len(page) < PAGE:
            return found[::-1]
        before = page[-1].created_at, page[-1].rollout_id


async def replay_all(
    service: Service, store: Store, rollout_id: str | None, request_of: Callable[[str], RolloutRequest]
) -> AsyncIterator[Compared]:
    """Replays one stored rollout of the service's app, or (without an id) all that did not fail, oldest first.

    request_of: the request for an id, as `replay` takes it. Raises ConfigError: there is no such rollout, or it failed.
    """
    app = service.app.name
    for name in [rollout_id] if rollout_id is not None else await stored_ids(store, app):
        stored = await store.load(name)
        if stored is None or stored.app != app:
            raise ConfigError(
                f"There is no rollout {name[:80]!r} of the app {app} in that store.",
                hint="Its id is in the answer, in results.jsonl, and in GET /rollouts.",
            )
        if stored.status == "failed":
            raise ConfigError(
                f"The rollout {name} failed, so there is nothing to compare.", hint="Name one that was scored."
            )
        yield await replay(service, store, stored, request_of(name))


async def replay(service: Service, store: Store, stored: StoredRollout, requested: RolloutRequest) -> Compared:
    """Plays a rollout of `store` again in `service`, which may store it elsewhere, and compares.

    requested: the caller's description of the episode, which has to match. Raises RequestError `replay_differs`.
    """
    was = await load_trajectory(store, stored)
    request = as_stored(requested, stored, service.spec).model_copy(update={"ops": _ops(stored, was)})
    policy = ReplayPolicy(recording_of(stored))
    events: list[Event] = []
    problem = digest = observation_digest = None
    try:
        played = await service.rollout(request, policy=policy, listener=events.append)
        digest, observation_digest, now = played.digest, played.observation_digest, played.trajectory
    except RolloutFailed as failed:
        problem = f"The replay failed at boundary {failed.boundary} ({failed.failure.code}): {failed.message}"
        now = fold(events) if events else was
    difference = None
    if problem is not None or digest != stored.digest:
        difference = first_difference(was, now)
    elif (
        None not in (stored.observation_digest, observation_digest) and stored.observation_digest != observation_digest
    ):
        difference = first_difference(was, now, pictures=True)
    if difference is None and problem is None and digest != stored.digest:
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
    )


def _ops(stored: StoredRollout, was: Trajectory) -> list[Any]:
    """The `ops` that scripted the same actions; empty without any, then the policy decides when the episode ends."""
    answered = [event for event in stored.events if event.get("kind") == "answered"]
    if not any(event.get("scripted") for event in answered):
        return []
    ops: list[Any] = []
    for event, turn in zip(answered, was.turns, strict=True):
        (call,) = turn.answer.tool_calls if event.get("scripted") else (None,)
        ops.append("agent" if call is None else {"type": "env", "tool": call.tool, "args": call.args})
    return ops if stored.stop_reason == "ops" else [*ops, "agent"]


def first_difference(was: Trajectory, now: Trajectory, *, pictures: bool = False) -> Difference | None:
    """The first difference in what a digest covers, with `pictures` an observation digest. None: there is none."""
    for where, what, before, after in _compared(was, now, pictures):
        if before != after:
            return Difference(where, what, before, after)
    return None


def _compared(was: Trajectory, now: Trajectory, pictures: bool) -> Iterator[tuple[str, str, Any, Any]]:
    def shown(observation: Content) -> Json:
        content = content_to_json(observation if pictures else without_images(observation))
        if type(content) is list:  # `image` hashes an array's PNG bytes, which depend on the machine's zlib
            return [
                {name: part for name, part in block.items() if name != "image"}
                if isinstance(block, dict) and "pixels" in block
                else block
                for block in content
            ]
        return content

    yield "the episode", "environment version", was.version, now.version
    yield "the first observation", "observation", shown(was.initial), shown(now.initial)
    for one, two in zip(was.turns, now.turns, strict=False):
        where = _where(one)
        yield where, "the policy's words", one.answer.output, two.answer.output
        for before, after in zip(one.steps, two.steps, strict=False):
            where = f"step {before.index + 1}"
            yield where, "tool", before.tool, after.tool
            yield where, "arguments", before.args, after.args
            yield where, "observation", shown(before.observation), shown(after.observation)
            for name in ("reward", "terminated", "truncated", "info", "metrics"):
                yield where, name, getattr(before, name), getattr(after, name)
        yield from _rest(one.steps, two.steps, "action")
    yield from _rest(was.turns, now.turns, "answer")
    yield "the end", "status", was.status, now.status
    yield "the end", "stop reason", was.stop_reason, now.stop_reason
    if was.final_state != now.final_state:
        yield "the end", "end state (private)", "one", "another"


def _rest(was: Sequence[Any], now: Sequence[Any], what: str) -> Iterator[tuple[str, str, Any, Any]]:
    """What only one side has: a recorded turn that was not used, or one that was never played."""
    shared = min(len(was), len(now))
    if len(was) > shared:
        yield _where(was[shared]), f"recorded {what}", "played", "not used"
    elif len(now) > shared:
        yield _where(now[shared]), what, "not played", "played"


def _where(part: Any) -> str:
    if isinstance(part, Turn):
        return f"step {part.steps[0].index + 1}" if part.steps else f"turn {part.index + 1}"
    return f"step {part.index + 1}"
