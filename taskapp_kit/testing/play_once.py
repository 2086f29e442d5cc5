"""`play`, which plays one rollout in the process of a test. It uses the server's code, but no server."""

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
from taskapp_kit.errors import ConfigError, RolloutFailed, Unavailable
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
ASK_MODELS = (
    "Set the role's variables and call play(…, models=True), or replace the model with judges={ROLE: function}. "
    'judges="skip" skips all judges.'
)
MODEL_NAME = "mock"
"""The name of the model in requests to a `MockModel`, which accepts any name."""

_reported: set[tuple[str, str]] = set()
"""The pairs of app and environment for which a change to a global random state was already reported."""


class GlobalRandomnessWarning(UserWarning):
    """An episode changed a random state that all episodes in a process share."""


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
    models: bool = False,
) -> Rollout:
    """Play and score one episode in this process: `assert play(app, seed=3, policy="gold").reward == 1.0`.

    Nothing is stored. The function may be called while an event loop is running. If the episode changes a global random
    state, the function issues a GlobalRandomnessWarning, once per environment. Random numbers that are drawn by an
    import do not count.

    Args:
        app: The app, or its path, such as "adder.py".
        seed: The seed of the episode. Defaults to a random seed in the split.
        split: The split of the episode. Defaults to the first split.
        environment: The name of the environment. Defaults to the app's first environment.
        config: The value of `env.config` in the request.
        policy: The name of a policy, the fields of `policy.config`, or a running `MockModel`. Defaults to "random".
        action: The action that the policy `constant` repeats, which is `{"tool": {args}}` or a string. It cannot be
            combined with other policies.
        ops: The number of turns, at least 1, or a list as in the field `ops` of a request.
        judges: With "skip", no judge is called, and the scores of judges and the reward are None. A function, such as
            `testing.judge(0.7)`, replaces all judges. A mapping from role (`model=` of `@app.judge`) to function
            replaces only the judges with these roles.
        models: Whether the other judges and the environment call the models that variables such as TASKAPP_JUDGE_URL
            name. By default, they have no model, whatever the variables and the file `.env` contain.

    Returns:
        The rollout: its trajectory, its scorecard and its reward.

    Raises:
        RolloutFailed: The environment, the policy or the scoring failed.
        RequestError: An argument is invalid for this app.
        ConfigError: An argument has an invalid value, or two arguments exclude each other.
        DeclarationError: A declaration of the app is invalid.
        Unavailable: A model or a package is missing.
        pydantic.ValidationError: The request is invalid.
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
    with _settings(task_app, judges, models=models) as settings:
        rollout = run(_once(task_app, request, settings, skip_judges=judges == "skip"))
    played = rollout.trajectory.environment
    sentence = watch.changed(played)
    if sentence is not None and (spec.name, played) not in _reported:
        _reported.add((spec.name, played))
        warnings.warn(f"{sentence}; {global_random.REMEDY}.", GlobalRandomnessWarning, stacklevel=2)
    return rollout


async def _once(app: TaskApp, request: RolloutRequest, settings: Settings, *, skip_judges: bool) -> Rollout:
    try:
        service = Service.of(app, settings, max_concurrent=1, threads=1, skip_judges=skip_judges)
    except Unavailable as no_judge:
        raise Unavailable(no_judge.message, hint=ASK_MODELS) from None
    try:
        return await service.rollout(request)
    except RolloutFailed as failed:
        if failed.failure.code == "auxiliary_model_not_configured":
            failed.hint = ASK_MODELS
        raise
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
                "play was called with action= and a policy other than 'constant'. Only 'constant' repeats an action.",
                hint="Omit policy= or action=.",
            )
        return {"policy": "constant", "action": action}
    if isinstance(policy, MockModel):
        return {"inference_url": policy.url, "model": MODEL_NAME}
    if isinstance(policy, Mapping):
        return dict(policy)
    return {"policy": "random" if policy is None else policy}


def _check_judges(judges: Any) -> None:
    """Raise ConfigError if `play` does not accept the value of `judges`."""
    functions = list(judges.values()) if isinstance(judges, Mapping) else [judges]
    if judges is not None and judges != "skip" and not all(callable(function) for function in functions):
        raise ConfigError(
            f"play does not accept judges={judges!r}.",
            hint='Pass "skip", a function such as testing.judge(0.7), or a mapping from role (model= of the judge) to function.',
        )


@contextlib.contextmanager
def _settings(app: TaskApp, judges: Any, *, models: bool) -> Iterator[Settings]:
    """Yield the settings of the process, with a mock model for each judge role that `judges` replaces.

    models: whether to keep the configured models of the other roles.
    """
    settings = load() if models else load().without_models()
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
