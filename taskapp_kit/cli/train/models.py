"""`taskapp models`: list, export, import and remove the trained models on this machine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from taskapp_kit.cli.options import ENV_FILES, json_option, options
from taskapp_kit.cli.output.terminal import (
    clean,
    console,
    echo,
    example,
    number,
    one_line,
    print_json,
    size_words,
    table,
)
from taskapp_kit.config import load
from taskapp_kit.errors import CheckpointError
from taskapp_kit.train.checkpoints import facts as checkpoint_facts
from taskapp_kit.train.checkpoints import library, stored
from taskapp_kit.train.engine import local_engine

NAME = "rl:tiny:rl_0123456789abcdef:checkpoint-10"
LIST_EXAMPLE = "taskapp models list"
EXPORT_EXAMPLES = (f"taskapp models export {NAME} lever.tar", f"taskapp models export {NAME} lever.tar.gz --merge")
IMPORT_EXAMPLE = "taskapp models import lever.tar"


def _here(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options --models, --env-file and --json. The directory of models is passed to the command as `models`."""

    @functools.wraps(command)
    def with_folder(*args: Any, models: Path | None, env_files: Sequence[str], as_json: bool, **others: Any) -> None:
        folder = load({"models": models}, env_files=env_files).models
        command(*args, models=folder, as_json=as_json, **others)

    return options(
        click.option(
            "--models",
            type=click.Path(file_okay=False, path_type=Path),
            metavar="DIR",
            help="The directory of models.  [default: TASKAPP_MODELS, or .taskapp/models]",
        ),
        ENV_FILES,
        json_option("Print only JSON on stdout."),
    )(with_folder)


@click.group(epilog=example(LIST_EXAMPLE, EXPORT_EXAMPLES[0], IMPORT_EXAMPLE))
def command() -> None:
    """List, export, import and remove the trained models on this machine.

    NAME is rl:MODEL:JOB:CHECKPOINT, as printed in a job's results, or ft:MODEL:JOB:CHECKPOINT for a fine-tuned model. To
    play with a model, pass its name to `eval` or `rollout` as --model.
    """


@command.command("list", epilog=example(LIST_EXAMPLE))
@_here
def list_(models: Path, as_json: bool) -> None:
    """List trained models with their scores.

    The score of a model from RL is the reward in an evaluation. The score of a fine-tuned model is its negative held-out
    loss.
    """
    listed = [_shown(model) for model in library.trained_models(models)]
    if as_json:
        print_json({"folder": str(models), "models": listed})
        return
    if not listed:
        echo(f"No trained models in {clean(str(models))}. `taskapp train --local` trains a model.", err=True)
        return
    rows = table("name", "iteration", "score", "size", "kind", "saved", right=("iteration", "score", "size"))
    for model in listed:
        rows.add_row(
            clean(model["name"]),
            f"{model['iteration']}",
            number(model["score"]),
            size_words(model["size_bytes"]),
            f"adapter on {one_line(model['base'], 60)}" if model["adapter"] else "whole",
            model["saved_at"][:19].replace("T", " "),
        )
    console().print(rows)


@command.command(epilog=example(*EXPORT_EXAMPLES))
@click.argument("name", metavar="NAME")
@click.argument("archive", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--merge", is_flag=True, help="Merge an adapter with its base model.")
@_here
def export(name: str, archive: Path, merge: bool, models: Path, as_json: bool) -> None:
    """Write NAME to a tar archive, which is compressed if FILE ends in .gz.

    The archive contains the weights, the tokenizer, the job's config, and the license of the base model with a notice that
    the model was changed. It does not contain the optimizer's state.
    """
    checkpoint = library.trained_model(models, checkpoint_facts.TrainedModelName.parse(name))
    written: dict[str, Any] = {"name": name, "archive": str(archive), "size_bytes": 0}
    if merge:
        if stored.ADAPTER not in checkpoint.files:
            raise CheckpointError(f"{name} is not an adapter, so it cannot be merged.", hint="Omit --merge.")
        local_engine.check_installed("Merging an adapter")
        from taskapp_kit.train.models.loading import export_merged

        written["largest_difference"] = export_merged(name, models, archive)
    else:
        library.export_checkpoint(checkpoint, archive)
    written["size_bytes"] = archive.stat().st_size
    if as_json:
        print_json(written)
        return
    echo(f"Written to {clean(str(archive))} ({size_words(written['size_bytes'])}).")
    if merge:
        difference = written["largest_difference"]
        echo(f"Log-probabilities of the merged model differ from the adapter's by at most {difference:.1g}.")


@command.command("import", epilog=example(IMPORT_EXAMPLE))
@click.argument("archive", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_here
def import_(archive: Path, models: Path, as_json: bool) -> None:
    """Unpack an archive of `taskapp models export` into the directory of models, and print the model's name.

    Only regular files of known kinds are unpacked. The SHA-256 of each file must match the archive's manifest.
    """
    checkpoint = library.import_checkpoint(archive, models)
    name = str(checkpoint.facts.name)
    if as_json:
        print_json({"name": name, "folder": str(checkpoint.path)})
    else:
        echo(name)


@command.command(epilog=example(f"taskapp models rm {NAME}"))
@click.argument("names", metavar="NAME…", nargs=-1, required=True)
@_here
def rm(names: tuple[str, ...], models: Path, as_json: bool) -> None:
    """Remove models. Jobs cannot be restarted from removed checkpoints."""
    parsed = [checkpoint_facts.TrainedModelName.parse(name) for name in names]
    removed: list[dict[str, Any]] = [
        {"name": str(name), "size_bytes": library.remove_trained_model(models, name)} for name in parsed
    ]
    if as_json:
        print_json({"removed": removed})
        return
    for model in removed:
        echo(f"Removed {model['name']} ({size_words(model['size_bytes'])}).")


def _shown(model: library.TrainedModel) -> dict[str, Any]:
    facts = model.facts
    return {
        "name": str(model.name),
        "base": facts.origin.base,
        "licence": facts.origin.licence,
        "job": facts.job,
        "iteration": facts.position.iteration,
        "weights_version": facts.weights_version,
        "score": facts.score,
        "size_bytes": model.size,
        "adapter": model.adapter,
        "resumable": model.resumable,
        "saved_at": datetime.fromtimestamp(model.modified, UTC).isoformat(),
    }
