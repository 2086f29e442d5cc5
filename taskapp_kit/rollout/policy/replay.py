"""The policy `replay`: a stored rollout's episode and the answers of its policy."""

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
"""Stop reasons that the environment produces again by itself; other limits came with the request and end a replay too."""


def as_stored(request: RolloutRequest, stored: StoredRollout, app: AppSpec) -> RolloutRequest:
    """Return the request with environment, split, seed, config and the policy's sample from a stored rollout of this app.

    Values that the request gives for these must be equal. Raises RequestError `replay_differs`, which names each field
    that differs; `unknown_environment` when the app no longer has that environment.
    """
    differing = tuple(_differing(request, stored, app))
    if differing:
        raise RequestError(
            f"The request does not match the episode of rollout {stored.rollout_id}: "
            + "; ".join(f"{'.'.join(map(str, problem.loc[1:]))} {problem.message}" for problem in differing)
            + ".",
            fields=differing,
            code="replay_differs",
            hint="Omit these fields. A replay reads them from the stored rollout.",
        )
    safety = request.safety
    if stored.stop_reason == "max_ops":  # the limit may have been reached within an answer
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
        return FieldProblem(("body", *loc), f"is {_short(asked)}, but was {_short(was)}", "replay_differs")

    env = request.env
    if env.env_name not in (None, stored.environment):
        yield problem(("env", "env_name"), env.env_name, stored.environment)
        return  # another environment's config cannot be compared
    read = read_config(find_environment(app, stored.environment), env.config)
    if env.seed not in (None, stored.seed):
        yield problem(("env", "seed"), env.seed, stored.seed)
    if read.split not in (None, stored.split):
        yield problem(("env", "config", "split"), read.split, stored.split)
    for name, value in read.given.items():
        if name not in stored.config:
            yield FieldProblem(
                ("body", "env", "config", name), f"is {_short(value)}, but was not set", "replay_differs"
            )
        elif stored.config[name] != value:
            yield problem(("env", "config", name), value, stored.config[name])
    # a policy that draws would otherwise be another one
    sample = request.policy.config.get("sample")
    if sample is not None and sample != stored.policy.get("sample", 0):
        yield problem(("policy", "config", "sample"), sample, stored.policy.get("sample", 0))


def recording_of(stored: StoredRollout) -> Recording:
    """The answers of a stored rollout's policy, and the limit that ended it, unless the environment declares that limit."""
    turns = EpisodeRecord.of(stored.events).turns
    events = [from_json(turn.answered) for turn in turns if not turn.scripted]
    answers = [event.answer for event in events if isinstance(event, Answered)]
    ended = stored.status == "truncated" or (stored.failure or {}).get("boundary") == "scoring"
    # the environment's own limits end a replay at the same place by themselves
    by_request = ended and stored.stop_reason not in DECLARED_LIMITS
    return Recording(answers, stored.stop_reason if by_request else None)


def _short(value: Json) -> str:
    return cut(json.dumps(value, ensure_ascii=False), 60)
