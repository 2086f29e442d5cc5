"""The policy `replay`, which repeats the episode and the policy's answers of a stored rollout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from taskapp_kit.declare.episode_selection import find_environment, read_config
from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.errors import FieldProblem, RequestError
from taskapp_kit.records.content import Json
from taskapp_kit.records.events import Answered, EpisodeRecord, from_json
from taskapp_kit.records.formatting import cut
from taskapp_kit.records.protocols import StoredRollout
from taskapp_kit.records.trajectory import Recording
from taskapp_kit.wire.rollout import RolloutRequest

DECLARED_LIMITS = ("environment", "max_turns", "max_steps")
"""Stop reasons that the environment produces again. Other limits came with the request and must also end a replay."""


def as_stored(request: RolloutRequest, stored: StoredRollout, app: AppSpec) -> RolloutRequest:
    """Return the request with the environment, split, seed, config and sample of a stored rollout of this app.

    Raises RequestError `replay_differs`, which names the fields, if the request has other values for them. Raises
    `unknown_environment` if the app no longer has the environment.
    """
    differing = tuple(_differing(request, stored, app))
    if differing:
        raise RequestError(
            f"The request does not match the episode of rollout {stored.rollout_id}: "
            + "; ".join(f"{'.'.join(map(str, problem.loc[1:]))} {problem.message}" for problem in differing)
            + ".",
            fields=differing,
            code="replay_differs",
            hint="Omit these fields. A replay uses the values of the stored rollout.",
        )
    safety = request.safety
    if stored.stop_reason == "max_ops":  # the limit may have been reached between the calls of one answer
        reached = next(int(event["value"]) for event in stored.events if event.get("kind") == "limited")
        safety = safety.model_copy(update={"max_ops": min(safety.max_ops, reached)})
    config: dict[str, Any] = {**request.env.config, **stored.config, "split": stored.split}
    policy = {**request.policy.config, **({"sample": stored.policy["sample"]} if "sample" in stored.policy else {})}
    return request.model_copy(
        update={
            "env": request.env.model_copy(
                update={"env_name": stored.environment, "seed": stored.seed, "config": config}
            ),
            "policy": request.policy.model_copy(update={"config": policy}),
            "safety": safety,
        }
    )


def _differing(request: RolloutRequest, stored: StoredRollout, app: AppSpec) -> Iterator[FieldProblem]:
    def problem(loc: tuple[str, ...], asked: Json, was: Json) -> FieldProblem:
        return FieldProblem(("body", *loc), f"is {_short(asked)}, but the rollout has {_short(was)}", "replay_differs")

    env = request.env
    if env.env_name not in (None, stored.environment):
        yield problem(("env", "env_name"), env.env_name, stored.environment)
        return  # the config of another environment cannot be compared
    read = read_config(find_environment(app, stored.environment), env.config)
    if env.seed not in (None, stored.seed):
        yield problem(("env", "seed"), env.seed, stored.seed)
    if read.split not in (None, stored.split):
        yield problem(("env", "config", "split"), read.split, stored.split)
    for name, value in read.given.items():
        if name not in stored.config:
            yield FieldProblem(
                ("body", "env", "config", name), f"is {_short(value)}, but the rollout did not set it", "replay_differs"
            )
        elif stored.config[name] != value:
            yield problem(("env", "config", name), value, stored.config[name])
    # a policy that draws would otherwise make different decisions
    sample = request.policy.config.get("sample")
    if sample is not None and sample != stored.policy.get("sample", 0):
        yield problem(("policy", "config", "sample"), sample, stored.policy.get("sample", 0))


def recording_of(stored: StoredRollout) -> Recording:
    """Return the answers of a stored rollout's policy, and the request's limit that ended the rollout, if any."""
    turns = EpisodeRecord.of(stored.events).turns
    events = [from_json(turn.answered) for turn in turns if not turn.scripted]
    answers = [event.answer for event in events if isinstance(event, Answered)]
    ended = stored.status == "truncated" or (stored.failure or {}).get("boundary") == "scoring"
    # the environment's own limits also end the replay at the same step
    by_request = ended and stored.stop_reason not in DECLARED_LIMITS
    return Recording(answers, stored.stop_reason if by_request else None)


def _short(value: Json) -> str:
    return cut(json.dumps(value, ensure_ascii=False), 60)
