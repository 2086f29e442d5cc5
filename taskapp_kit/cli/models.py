"""`taskapp models`: the trained models of this machine, listed, exported, imported and removed."""

from __future__ import annotations

from pathlib import Path

import click

from taskapp_kit.cli.options import ENV_FILES, json_option, options
from taskapp_kit.cli.terminal import clean, echo, example, print_json, size_words
from taskapp_kit.config import load

NAME = "rl:tiny:rl_0123456789abcdef:checkpoint-10"
LIST_EXAMPLE = "taskapp models list"
EXPORT_EXAMPLES = (f"taskapp models export {NAME} lever.tar", f"taskapp models export {NAME} lever.tar.gz --merge")
IMPORT_EXAMPLE = "taskapp models import lever.tar"

_here = options(
    click.option(
        "--models",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="The models folder.  [default: TASKAPP_MODELS, or .taskapp/models]",
    ),
    ENV_FILES,
    json_option("Print JSON, and nothing else on stdout."),
)


@click.group(epilog=example(LIST_EXAMPLE, EXPORT_EXAMPLES[0], IMPORT_EXAMPLE))
def command() -> None:
    """List, export, import and remove the trained models of this machine.

    NAME is rl:MODEL:JOB:CHECKPOINT, as a job's results have it, or ft:… of a fine-tuned model; `eval` and `rollout` take it
    as --model.
    """


def _folder(models: Path | None, env_files: tuple[str, ...]) -> Path:
    return load({"models": models}, env_files=env_files).models


@command.command("list", epilog=example(LIST_EXAMPLE))
@_here
def list_(models: Path | None, env_files: tuple[str, ...], as_json: bool) -> None:
    """List them. The score is the reward at its evaluation; of a fine-tuned model, minus the held-out loss."""
    from taskapp_kit.cli import models_run

    found = models_run.listed(_folder(models, env_files))
    if as_json:
        print_json(found)
    else:
        models_run.show(found)


@command.command(epilog=example(*EXPORT_EXAMPLES))
@click.argument("name", metavar="NAME")
@click.argument("archive", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--merge", is_flag=True, help="Of an adapter: merge it with its base into whole weights.")
@_here
def export(
    name: str, archive: Path, merge: bool, models: Path | None, env_files: tuple[str, ...], as_json: bool
) -> None:
    """Write NAME into a tar archive, without the optimizer's state; compressed if FILE ends in .gz.

    It has the weights, the tokenizer, the job's config, and the licence of the base with a notice of the change.
    """
    from taskapp_kit.cli import models_run

    written = models_run.export(_folder(models, env_files), name, archive, merge=merge)
    if as_json:
        print_json(written)
    else:
        echo(f"Written to {clean(str(archive))} ({size_words(written['size_bytes'])}).")
        if merge:
            difference = written["largest_difference"]
            echo(f"Log-probabilities of the merged model differ from the adapter's by at most {difference:.1g}.")


@command.command("import", epilog=example(IMPORT_EXAMPLE))
@click.argument("archive", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_here
def import_(archive: Path, models: Path | None, env_files: tuple[str, ...], as_json: bool) -> None:
    """Unpack an archive of `taskapp models export` into the models folder, and print the model's name.

    Only plain files of known kinds are unpacked, and each has to have the SHA-256 that its manifest names.
    """
    from taskapp_kit.cli import models_run

    found = models_run.import_(_folder(models, env_files), archive)
    if as_json:
        print_json(found)
    else:
        echo(found["name"])


@command.command(epilog=example(f"taskapp models rm {NAME}"))
@click.argument("names", metavar="NAME…", nargs=-1, required=True)
@_here
def rm(names: tuple[str, ...], models: Path | None, env_files: tuple[str, ...], as_json: bool) -> None:
    """Remove models. A job can go on from its other checkpoints only."""
    from taskapp_kit.cli import models_run

    removed = models_run.remove(_folder(models, env_files), names)
    if as_json:
        print_json({"removed": removed})
        return
    for each in removed:
        echo(f"Removed {each['name']} ({size_words(each['size_bytes'])}).")
