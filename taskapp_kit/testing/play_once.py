"""`play`, which plays one rollout in the process of a test, with the same code as a server but without a server."""

from __future__ import annotations

import contextlib
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from taskapp_kit.client.blocking_portal import run
from taskapp_kit.config import Settings, load
from taskapp_kit.declare.app import TaskApp
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.errors import ConfigError
from taskapp_kit.records.content import Json
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.rollout.episode import global_random
from taskapp_kit.rollout.score.judges import needed_roles
from taskapp_kit.rollout.service import Service
from taskapp_kit.testing.mock_model.server import MockModel
from taskapp_kit.wire.chat.conversation import role_variable
from taskapp_kit.wire.rollout import RolloutRequest

if TYPE_CHECKING:
    from taskapp_kit.testing.mock_model.chat_request import ChatRequest

__all__ = ["GlobalRandomnessWarning", "Rollout", "play"]

Judge = Callable[["ChatRequest"], Any]
MODEL_NAME = "mock"
"""The model's name in requests to a `MockModel`, which accepts any."""

_reported: set[tuple[str, str]] = set()
"""The (app, environment) pairs for which a change of a global random state was reported."""


class GlobalRandomnessWarning(UserWarning):
    """An episode changed a random state that all episodes of a process share."""


def play(
    app: TaskApp | str | Path,
    *,
    seed: int | None = None,
    split: str | None = None,
    environment: str | None = None,
    config: Mapping[str, Json] | None = None,
    policy: str | Mapping[str, Json] | MockModel | None = None,
    action: Json = None,
    ops: int | Sequence[Json] = (),
    judges: Literal["skip"] | Judge | Mapping[str, Judge] | None = None,
) -> Rollout:
    """Play and score one episode in this process: `assert play(app, seed=3, policy="gold").reward == 1.0`.

    Nothing is stored. The function may be called while an event loop is running. It issues a GlobalRandomnessWarning, once
    per environment, if the episode changed a global random state. Imports that draw random numbers do not count.

    Args:
        app: The app, or its path, such as "adder.py".
        seed: The episode's seed. Defaults to a seed drawn from the split.
        split: The split to draw from, or the split whose row the seed counts. Defaults to the first one.
        environment: The environment's name. Defaults to the app's first environment.
        config: `env.config` of the request.
        policy: A policy's name, the members of `policy.config`, or a running `MockModel`, which plays like a language model.
            Defaults to "random".
        action: The action that the policy `constant` repeats: `{"tool": {args}}` or a string. Not allowed with another policy.
        ops: A number of turns, at least 1, or `ops` as in a request.
        judges: "skip" calls no judge, so their scores and the reward are None. A function, such as `testing.judge(0.7)`,
            answers for every judge; a mapping has a function for each role. By default the models in the process environment
            are called (TASKAPP_JUDGE_URL).

    Returns:
        The rollout: its trajectory, its scorecard and its reward.

    Raises:
        RolloutFailed: The environment, the policy or the scoring failed.
        RequestError: An argument is invalid for this app.
        ConfigError: An argument has an invalid value, or two arguments exclude each other.
        DeclarationError: The app's declarations have problems.
        Unavailable: A model or a package is missing.
        pydantic.ValidationError: The request is not valid.
    """
    task_app = app if isinstance(app, TaskApp) else find_app(str(app))
    spec = task_app.freeze()
    request = RolloutRequest.model_validate(
        {
            "run_id": f"test-{uuid.uuid4().hex[:12]}",
            "mode": "eval",
            "ops": _ops(ops),
            "env": {
                "env_name": environment,
                "seed": seed,
                "config": {**(config or {}), **({} if split is None else {"split": split})},
            },
            "policy": {"config": _policy_config(policy, action)},
        }
    )
    _check_judges(judges)
    watch = global_random.GlobalRandomWatch()
    with _settings(task_app, judges) as settings:
        rollout = run(_once(task_app, request, settings, skip_judges=judges == "skip"))
    played = rollout.trajectory.environment
    sentence = watch.changed(played)
    if sentence is not None and (spec.name, played) not in _reported:
        _reported.add((spec.name, played))
        warnings.warn(f"{sentence}; {global_random.REMEDY}.", GlobalRandomnessWarning, stacklevel=2)
    return rollout


async def _once(app: TaskApp, request: RolloutRequest, settings: Settings, *, skip_judges: bool) -> Rollout:
    service = Service.of(app, settings, max_concurrent=1, threads=1, skip_judges=skip_judges)
    try:
        return await service.rollout(request)
    finally:
        await service.close()


def _ops(ops: int | Sequence[Json]) -> list[Json]:
    if not isinstance(ops, int):
        return list(ops)
    if ops < 1:
        raise ConfigError(f"play was called with ops={ops}.", hint="Pass at least 1 turn, or omit ops=.")
    return ["agent"] * ops


def _policy_config(policy: str | Mapping[str, Json] | MockModel | None, action: Json) -> dict[str, Json]:
    if action is not None:
        if policy not in (None, "constant"):
            raise ConfigError(
                "play was called with action= and a policy other than 'constant', the only policy that repeats an action.",
                hint="Omit policy= or action=.",
            )
        return {"policy": "constant", "action": action}
    if isinstance(policy, MockModel):
        return {"inference_url": policy.url, "model": MODEL_NAME}
    if isinstance(policy, Mapping):
        return dict(policy)
    return {"policy": "random" if policy is None else policy}


def _check_judges(judges: Any) -> None:
    """Raise ConfigError unless `judges` is a value that `play` accepts."""
    functions = list(judges.values()) if isinstance(judges, Mapping) else [judges]
    if judges is not None and judges != "skip" and not all(callable(function) for function in functions):
        raise ConfigError(
            f"play was called with judges={judges!r}.",
            hint='Pass "skip", a function such as testing.judge(0.7), or a mapping from role to function.',
        )


@contextlib.contextmanager
def _settings(app: TaskApp, judges: Any) -> Iterator[Settings]:
    """Yield the process's settings, with a mock model for each role that `judges` replaces."""
    settings = load()
    if judges is None or judges == "skip":
        yield settings
        return
    if isinstance(judges, Mapping):
        answering = dict(judges)
    else:
        answering = {need.role: judges for need in needed_roles(app.freeze()) if need.judges}
    with contextlib.ExitStack() as running:
        variables = dict(settings.variables)
        for role, judge in answering.items():
            address = role_variable(role)
            variables[address] = running.enter_context(MockModel(judge)).url
            variables[address.removesuffix("URL") + "MODEL"] = MODEL_NAME
        yield replace(settings, variables=variables)
