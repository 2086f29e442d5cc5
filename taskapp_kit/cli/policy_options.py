"""The choice of a policy: --policy, --action, --model and --inference-url as fields of `policy.config`."""

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
"""Prefixes of the names of models that a backend fine-tuned or trained. The backend serves these models."""
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
    """Return `policy.config`, and a note for the user about the chosen policy. The note may be empty.

    If APP is a server on another machine, a warning states that the server will receive the model's key. The backend's key
    is never sent to such a server.

    Raises UsageError if the options contradict each other, and ConfigError if the model or its key cannot be found.
    """
    config: dict[str, Any] = dict(policy_config or {})
    note = ""
    if model is not None or inference_url is not None:
        if policy is not None or action is not None:
            raise click.UsageError("--model and --inference-url choose a model. Omit --policy and --action.")
        chosen = chosen_model(settings, model, inference_url, app=app)
        if "api_key" in chosen:
            _show_who_gets_the_key(app, str(model), chosen)
        config.update(chosen)
    elif "inference_url" not in config or policy is not None or action is not None:
        note = "" if policy or action is not None or config.get("policy") else "no --policy was given"
        config = {"policy": policy or ("constant" if action is not None else "random"), **config}
    if action is not None:
        config["action"] = action
    return config, note


@dataclass(frozen=True)
class ChosenPolicies:
    """The policies that several flags choose.

    Attributes:
        configs: Each `policy.config` by a unique name.
        in_models_file: For each model that was chosen by name: its name in `configs`, mapped to its name in models.toml
            or on a backend.
        note: A note for the user about the chosen policy. It may be empty.
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
    """Return every policy and model on the command line. A single address applies to all models.

    Raises the same errors as `chosen_policy`. Also raises UsageError if the number of addresses differs from the number
    of models, or if two policies have the same name.
    """

    def config_for(policy: str | None, model: str | None, url: str | None, action: Any = None) -> dict[str, Any]:
        return chosen_policy(settings, policy, model, url, action, policy_config, app=app)[0]

    if len(inference_urls) > 1 and len(inference_urls) != len(models):
        raise click.UsageError("Pass one --inference-url for all models, or one for each --model, in the same order.")
    if len(policies) + max(len(models), len(inference_urls)) <= 1:
        policy, model, url = (values[0] if values else None for values in (policies, models, inference_urls))
        config, note = chosen_policy(settings, policy, model, url, action, policy_config, app=app)
        name = policy_name(config)
        return ChosenPolicies({name: config}, {name: model} if model is not None and url is None else {}, note)
    if action is not None and "constant" not in policies:
        raise click.UsageError("--action applies to the policy `constant`. Add --policy constant.")
    chosen = [(name, config_for(name, None, None, action if name == "constant" else None)) for name in policies]
    labels: Sequence[str | None] = models or [None] * len(inference_urls)
    addresses: Sequence[str | None] = (
        [*inference_urls] * len(labels) if len(inference_urls) == 1 else inference_urls or [None] * len(labels)
    )
    chosen += [(model or "", config_for(None, model, url)) for model, url in zip(labels, addresses, strict=True)]
    names = [policy_name(config) for _, config in chosen]
    if len(set(names)) < len(names):  # models.toml may contain one model with two addresses
        names = [label or policy_name(config) for label, config in chosen]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise click.UsageError(f"Two policies are called {twice}. Give them different names in models.toml.")
    configs = dict(zip(names, (config for _, config in chosen), strict=True))
    return ChosenPolicies(configs, {} if inference_urls else dict(zip(names[len(policies) :], models, strict=True)))


def chosen_model(settings: Settings, model: str | None, url: str | None, *, app: str = "") -> dict[str, Any]:
    """Return the fields of `policy.config` for the model at the address `url` or with the name `model`.

    A name is looked up first in models.toml, then among the models on this machine. If it begins with `ft:` or `rl:`, it is
    then looked up on the backend. A model on this machine is served until the command ends, if APP can reach it.

    Raises ConfigError if the model or its key cannot be found, and Unavailable if a package is not installed.
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
                f"The model {model!r} is stored on this machine, and the server at {clean(app)} cannot reach it.",
                hint="Play the app in this process, or serve the model on a reachable address and add it to models.toml.",
            )
    named = names.resolve(str(model))
    key = None if named.key is None else settings.variable(named.key)
    if named.key is not None and key is None:
        raise ConfigError(
            f"The model {named.name!r} needs an API key, but {named.key} is not set.",
            hint=f"Set {named.key} in your environment.",
        )
    return {"inference_url": named.url, "model": named.model, **({} if key is None else {"api_key": key})}


def _show_who_gets_the_key(app: str, model: str, chosen: dict[str, Any]) -> None:
    if not is_url(app) or on_loopback(app):
        return
    if chosen["inference_url"].endswith(BACKENDS_MODELS) and model.startswith(BACKENDS_OWN):
        raise ConfigError(
            f"The backend serves the model {model!r}, so the backend's key would be sent to the server at {clean(app)}.",
            hint="Play the app in this process, or add the model to models.toml with a key that the server may see.",
        )
    echo(f"The key of the model {clean(model)} is sent to {clean(app)} with each rollout.", err=True)


def _of_the_backend(settings: Settings, model: str) -> dict[str, Any]:
    backend = next((value for name in BACKEND_VARIABLES if (value := settings.variable(name))), None)
    if backend is None:
        raise ConfigError(
            f"The model {model!r} is not on this machine, and no backend is configured.",
            hint="`taskapp models list` shows the models on this machine. For a model on a backend, set "
            f"{BACKEND_VARIABLES[0]} and {SYNTH_KEY}. For any other model, pass --inference-url, or add it to "
            "models.toml.",
        )
    key = settings.variable(SYNTH_KEY)
    return {
        "inference_url": f"{api_base(backend)}{BACKENDS_MODELS}",
        "model": model,
        **({} if key is None else {"api_key": key}),
    }


SERVED = "taskapp_kit.cli.served_here"
"""Key in a command's context for the processes that serve models, by the model's name."""


def is_here(settings: Settings, model: str) -> bool:
    """Return whether a model of this name is on this machine or is created here on first use."""
    own = settings.aliases.get(model, model)
    if is_path(own):
        return True
    try:
        return TrainedModelName.parse(own).folder(settings.models).is_dir()
    except BadArgument:
        return own in base_models(settings.models)


def served_here(settings: Settings, model: str) -> dict[str, Any]:
    """Serve a model until the command ends, and return its fields of `policy.config`.

    Raises ConfigError if the model cannot be served, and Unavailable if a package is not installed.
    """
    context = click.get_current_context()
    processes: dict[str, ServingProcess] = context.meta.setdefault(SERVED, {})
    process = processes.get(model)
    if process is None:
        process = processes[model] = ServingProcess(model, settings.models, settings.aliases, paths=True)
        context.call_on_close(process.close)
        echo(f"Loading {clean(model)} …", err=True)
        process.wait()
        if process.own_name != model:
            echo(f"{clean(model)} is an alias of {clean(process.own_name)}.", err=True)
    # the port changes with each run, so an evaluation stores the address without it and can resume
    return {"inference_url": process.url, "model": model, "api_key": process.key}
