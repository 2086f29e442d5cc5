"""`POST /score_group`: loads stored rollouts of one seed, checks that they are comparable, and ranks them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from taskapp_kit.declare.episode_selection import read_config
from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.declare.tasks import row_hash
from taskapp_kit.errors import FieldProblem, RequestError, RolloutFailed, Unavailable
from taskapp_kit.records.content import Json
from taskapp_kit.records.protocols import RolloutQuery, StoredRollout
from taskapp_kit.records.trajectory import Trajectory
from taskapp_kit.rollout.admission import Caller
from taskapp_kit.rollout.request import RequestPlanner
from taskapp_kit.rollout.score.failures import ScoringFailed
from taskapp_kit.rollout.score.groups import GroupScored, group_judges, score_group
from taskapp_kit.rollout.source import RolloutReader, load_trajectory
from taskapp_kit.wire.chat.conversation import ModelPort

log = logging.getLogger("taskapp_kit.service")

MAX_MEMBERS = 64
"""The maximum number of rollouts in one group."""
_SAME = {
    "app": "app",
    "environment": "environment",
    "split": "split",
    "seed": "seed",
    "config": "config",
    "spec_hash": "spec hash (the app's declarations)",
    "row_hash": "task",
}


@dataclass(slots=True)
class Group:
    """Rollouts with the same environment, split, seed and config. group_id: the group id that all of them have, if any."""

    spec: AppSpec
    rollout_ids: list[str]
    trajectories: list[Trajectory]
    task: Any
    config: dict[str, Json]
    group_id: str | None

    def score(self, models: ModelPort | None) -> dict[str, Json]:
        """Return the response body of `POST /score_group`. Blocks, and runs the author's code, so call it in a thread.

        Raises RolloutFailed at boundary `scoring` or `timeout` if a judge with weight > 0 gave no verdict.
        """
        try:
            scored = score_group(self.spec, self.trajectories, task=self.task, config=self.config, models=models)
        except ScoringFailed as error:
            raise RolloutFailed(error.failure) from error.__cause__
        log.info("group scored rollouts=%d judge_calls=%d", len(self.rollout_ids), len(scored.judging.calls))
        return group_body(self, scored)


def group_body(group: Group, scored: GroupScored) -> dict[str, Json]:
    """Return the response body for a scored group."""
    first = group.trajectories[0]
    return {
        "group_id": group.group_id,
        "environment": first.environment,
        "split": first.split,
        "seed": first.seed,
        "scores": [
            {"rollout_id": name, "score": score, "rank": rank, "reason": reason}
            for name, score, rank, reason in zip(
                group.rollout_ids, scored.scores, scored.ranks, scored.reasons, strict=True
            )
        ],
        "judges": [
            {
                "name": one.judge,
                "weight": one.weight,
                "scores": dict(zip(group.rollout_ids, one.scores, strict=True)),
                "normalised": dict(zip(group.rollout_ids, one.normalised, strict=True)),
                "spreads": dict(zip(group.rollout_ids, one.spreads, strict=True)),
                "orders": [[group.rollout_ids[member] for member in order] for order in one.orders],
                "reason": one.reason,
                "error": one.error,
                "seconds": one.seconds,
                "cost": one.cost,
            }
            for one in scored.judgements
        ],
    }


async def load_group(
    planner: RequestPlanner,
    rollouts: RolloutReader,
    caller: Caller,
    *,
    rollout_ids: Sequence[str] | None = None,
    group_id: str | None = None,
) -> Group:
    """Load the stored rollouts of a group. Rollouts that the caller may not see count as missing.

    Args:
        planner: Resolves the rollouts' task.
        rollouts: Reads stored rollouts.
        caller: The client that requests the scores.
        rollout_ids: The ids of the rollouts. None loads all rollouts of `group_id`.
        group_id: The id of the group. It is ignored if `rollout_ids` is given.

    Returns:
        The group, ready to be scored.

    Raises:
        Unavailable: The server has no store, or the environment has no group judge.
        RequestError: A rollout is missing or failed, there are fewer than two, or they differ in environment, split, seed,
            config or declarations. The message names the difference.
    """
    store = rollouts.store
    if store is None:
        raise Unavailable(
            "/score_group reads stored rollouts, but this server has no store.", hint="Serve with --store PATH."
        )
    ids = await _ids_of(group_id, rollouts, caller) if rollout_ids is None else list(rollout_ids)
    if len(set(ids)) < len(ids):
        raise _wrong("rollout_ids contains the same rollout twice.", "duplicate_rollout")
    if not 2 <= len(ids) <= MAX_MEMBERS:
        count = str(len(ids)) if len(ids) <= MAX_MEMBERS else f"more than {MAX_MEMBERS}"
        raise _wrong(f"The size of the group is {count}; expected 2 to {MAX_MEMBERS} rollouts.", "bad_group")
    members = []
    for name in ids:
        member = await rollouts.load(name, caller)
        if member is None:
            raise _wrong(f"The rollout {name[:80]!r} is not stored.", "no_such_rollout")
        members.append(member)
    # The scores of a group are compared, so everything except the policy's decisions must be equal.
    _one_identity(members)
    first = members[0]
    spec = planner.spec
    if first.spec_hash != spec.hash:
        raise _wrong(
            "The rollouts were played with a different version of the app: their spec hash differs from this server's.",
            "other_declarations",
        )
    if not group_judges(spec, first.environment):
        raise Unavailable(
            f"Environment {first.environment!r} has no group judge.", hint="Declare it with @app.judge(group=True)."
        )
    instance = planner.instance(first.environment, first.split, first.seed)
    # The judge reads the current row. If the row has changed, it would judge answers to another question.
    if (None if instance.task is None else row_hash(instance.task)) != first.row_hash:
        raise _wrong("The task's row has changed since the rollouts were played.", "other_declarations")
    arguments = read_config(spec.environments[first.environment], first.config).arguments
    trajectories = [await load_trajectory(store, member) for member in members]
    groups = {member.group_id for member in members}
    return Group(spec, ids, trajectories, instance.task, arguments, groups.pop() if len(groups) == 1 else None)


async def _ids_of(group_id: str | None, rollouts: RolloutReader, caller: Caller) -> list[str]:
    """Return the ids of the group's rollouts, the oldest first. If there are more than MAX_MEMBERS, return MAX_MEMBERS + 1."""
    # one more than the maximum, to detect a group that is too large
    found = await rollouts.query(RolloutQuery(group_id=group_id, limit=MAX_MEMBERS + 1), caller)
    if not found:
        raise _wrong("No stored rollout has this group_id.", "no_such_group", field="group_id")
    return [row.rollout_id for row in reversed(found)]


def _one_identity(members: Sequence[StoredRollout]) -> None:
    first = members[0]
    for member in members:
        if member.status == "failed":
            raise _wrong(f"Rollout {member.rollout_id} failed, so it cannot be compared.", "rollout_failed")
        differing = [words for name, words in _SAME.items() if getattr(member, name) != getattr(first, name)]
        if differing:
            raise _wrong(
                f"Rollouts {first.rollout_id} and {member.rollout_id} differ in {', '.join(differing)}. All rollouts of a "
                "group must have the same seed, config and app version.",
                "not_one_group",
            )


def _wrong(message: str, code: str, *, field: str = "rollout_ids") -> RequestError:
    return RequestError(message, fields=(FieldProblem(("body", field), message),), code=code)
