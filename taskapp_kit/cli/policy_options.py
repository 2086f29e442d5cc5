"""Who acts: `--policy`, `--action`, `--model` and `--inference-url` as members of `policy.config`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from taskapp_kit.cli.job_options import BACKEND_VARIABLES, SYNTH_KEY
from taskapp_kit.cli.options import is_url
from taskapp_kit.cli.output.terminal import clean, echo
from taskapp_kit.deploy.tunnel.tunnel_settings import on_loopback
from taskapp_kit.errors import BadArgument, ConfigError
from taskapp_kit.evaluate.plan import policy_name
from taskapp_kit.jobs.client.backend import api_base
from taskapp_kit.rollout.models.model_settings import ModelNames
from taskapp_kit.train.checkpoints.facts import TrainedModelName
from taskapp_kit.train.models.sources import base_models, is_path
from taskapp_kit.train.serving.process import ServingProcess

if TYPE_CHECKING:
    from taskapp_kit.config import Settings

BACKENDS_OWN = ("ft:", "rl:")
"""What the names of models begin with that a backend finetuned or trained, and serves itself."""
BACKENDS_MODELS = "/inference/v1"


def chosen_policy(
    settings: Settings,
    policy: str | None,
    model: str | None,
    inference_url: str | None,
    action: Any,
    policy_config: dict[str, Any] | None,
    *,
    app: str = "",
) -> tuple[dict[str, Any], str]:
    """`policy.config`, and what to say about it. Raises UsageError, ConfigError.

    app: the APP argument. The user is warned when a model's key goes to a server elsewhere; the backend's never does.
    """
    given: dict[str, Any] = dict(policy_config or {})
    note = ""
    if model is not None or inference_url is not None:
        if policy is not None or action is not None:
            raise click.UsageError("--model and --inference-url let a model act, --policy and --action something else.")
        chosen = chosen_model(settings, model, inference_url, app=app)
        if "api_key" in chosen:
            _show_who_gets_the_key(app, str(model), chosen)
        given.update(chosen)
    elif "inference_url" not in given or policy is not None or action is not None:
        note = "" if policy or action is not None or given.get("policy") else "no --policy was given"
        given = {"policy": policy or ("constant" if action is not None else "random"), **given}
    if action is not None:
        given["action"] = action
    return given, note


@dataclass(frozen=True)
class ChosenPolicies:
    """The policies of several flags. configs: `policy.config` by the name that tells each from the others.

    in_models_file: for such a name the model's in models.toml, or at a backend. note: what to say about the choice.
    """

    configs: dict[str, dict[str, Any]] = field(repr=False)
    in_models_file: dict[str, str]
    note: str = ""


def chosen_policies(
    settings: Settings,
    policies: Sequence[str],
    models: Sequence[str],
    inference_urls: Sequence[str],
    action: Any,
    policy_config: dict[str, Any] | None,
    *,
    app: str = "",
) -> ChosenPolicies:
    """Every policy and model that was named; one address is for all models, several are for one each.

    Raises UsageError, ConfigError; see `chosen_policy`.
    """

    def one(policy: str | None, model: str | None, url: str | None, action: Any = None) -> dict[str, Any]:
        return chosen_policy(settings, policy, model, url, action, policy_config, app=app)[0]

    if len(inference_urls) > 1 and len(inference_urls) != len(models):
        raise click.UsageError("Give one --inference-url for all models, or one for each --model, in the same order.")
    if len(policies) + max(len(models), len(inference_urls)) <= 1:
        policy, model, url = (given[0] if given else None for given in (policies, models, inference_urls))
        config, note = chosen_policy(settings, policy, model, url, action, policy_config, app=app)
        name = policy_name(config)
        return ChosenPolicies({name: config}, {name: model} if model is not None and url is None else {}, note)
    if action is not None and "constant" not in policies:
        raise click.UsageError("--action is what the policy `constant` repeats; name it with --policy constant.")
    chosen = [(name, one(name, None, None, action if name == "constant" else None)) for name in policies]
    labels: Sequence[str | None] = models or [None] * len(inference_urls)
    addresses: Sequence[str | None] = (
        [*inference_urls] * len(labels) if len(inference_urls) == 1 else inference_urls or [None] * len(labels)
    )
    chosen += [(model or "", one(None, model, url)) for model, url in zip(labels, addresses, strict=True)]
    names = [policy_name(config) for _, config in chosen]
    if len(set(names)) < len(names):  # models.toml may have one model at two addresses
        names = [given or policy_name(config) for given, config in chosen]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise click.UsageError(f"Two of the policies are called {twice}; name them apart in models.toml.")
    configs = dict(zip(names, (config for _, config in chosen), strict=True))
    given_models = names[len(policies) :] if not inference_urls else []
    return ChosenPolicies(configs, dict(zip(given_models, models, strict=True)) if given_models else {})


def chosen_model(settings: Settings, model: str | None, url: str | None, *, app: str = "") -> dict[str, Any]:
    """The members of policy.config for a model at an address, or for one that models.toml names.

    A model of this machine that models.toml does not have is served while the command runs, if APP can reach it. Any other
    name that begins with `ft:` or `rl:` is asked for at the backend. Raises ConfigError, Unavailable.
    """
    if url is not None:
        return {"inference_url": url, **({} if model is None else {"model": model})}
    names = ModelNames.of(settings)
    if str(model) not in names.models:
        here = is_here(settings, str(model))
        reachable = not is_url(app) or on_loopback(app)
        if here and reachable:
            return served_here(settings, str(model))
        if str(model).startswith(BACKENDS_OWN):
            return _of_the_backend(settings, str(model))
        if here:
            raise ConfigError(
                f"The model {model!r} is on this machine, where the server at {clean(app)} cannot reach it.",
                hint="Evaluate the app in this process; or serve the model elsewhere, and name its address in models.toml.",
            )
    named = names.resolve(str(model))
    key = None if named.key is None else settings.variable(named.key)
    if named.key is not None and key is None:
        raise ConfigError(
            f"The model {named.name!r} needs a key, and {named.key} is not set.",
            hint=f"Set {named.key} in your environment.",
        )
    return {"inference_url": named.url, "model": named.model, **({} if key is None else {"api_key": key})}


def _show_who_gets_the_key(app: str, model: str, chosen: dict[str, Any]) -> None:
    if not is_url(app) or on_loopback(app):
        return
    if chosen["inference_url"].endswith(BACKENDS_MODELS) and model.startswith(BACKENDS_OWN):
        raise ConfigError(
            f"The model {model!r} is the backend's own, and its key would go to the server at {clean(app)}.",
            hint="Evaluate the app in this process; or name the model in models.toml, with a key that the server may have.",
        )
    echo(f"The key of the model {clean(model)} goes to {clean(app)} with each rollout.", err=True)


def _of_the_backend(settings: Settings, model: str) -> dict[str, Any]:
    backend = next((value for name in BACKEND_VARIABLES if (value := settings.variable(name))), None)
    if backend is None:
        raise ConfigError(
            f"The model {model!r} is not on this machine, and no backend that could have it is named.",
            hint="`taskapp models list` shows the trained models of this folder (TASKAPP_MODELS: of another one). For a "
            f"backend's, set {BACKEND_VARIABLES[0]} and {SYNTH_KEY}; or give --inference-url, or an address in models.toml.",
        )
    key = settings.variable(SYNTH_KEY)
    return {
        "inference_url": f"{api_base(backend)}{BACKENDS_MODELS}",
        "model": model,
        **({} if key is None else {"api_key": key}),
    }


SERVED = "taskapp_kit.cli.served_here"
"""Where a command's context has its processes, by the model's name."""


def is_here(settings: Settings, model: str) -> bool:
    """Whether this machine has a model of this name, or makes it when it is first requested."""
    own = settings.aliases.get(model, model)
    if is_path(own):
        return True
    try:
        return TrainedModelName.parse(own).folder(settings.models).is_dir()
    except BadArgument:
        return own in base_models(settings.models)


def served_here(settings: Settings, model: str) -> dict[str, Any]:
    """Serve a model until the command ends; return the members of policy.config for it. Raises ConfigError, Unavailable."""
    context = click.get_current_context()
    processes: dict[str, ServingProcess] = context.meta.setdefault(SERVED, {})
    process = processes.get(model)
    if process is None:
        process = processes[model] = ServingProcess(model, settings.models, settings.aliases, paths=True)
        context.call_on_close(process.close)
        echo(f"Loading {clean(model)} …", err=True)
        process.wait()
        if process.own_name != model:
            echo(f"{clean(model)} stands for {clean(process.own_name)}.", err=True)
    # its port differs in each run; an evaluation stores the address without it, to be the same one when it is resumed
    return {"inference_url": process.url, "model": model, "api_key": process.key}
