"""`--model NAME` of a model on this machine: a process serves it until the command ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from taskapp_kit.cli.output.terminal import clean, echo
from taskapp_kit.errors import BadArgument
from taskapp_kit.train.checkpoints.facts import TrainedModelName
from taskapp_kit.train.models.sources import base_models, is_path
from taskapp_kit.train.serving.process import ServingProcess

if TYPE_CHECKING:
    from taskapp_kit.config import Settings

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
