"""`taskapp export`: write stored rollouts and tasks to files for other programs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from taskapp_kit.cli import local_app
from taskapp_kit.cli.options import (
    ENV_CONFIG,
    ENV_FILES,
    ENVIRONMENT,
    OUTPUT_MODE,
    SERVER_KEY,
    is_url,
    json_option,
    options,
    shown_source,
)
from taskapp_kit.cli.output.terminal import echo, example, print_json, shown_from, size_words
from taskapp_kit.cli.rollout_selection import FILTERS
from taskapp_kit.client import task_app as task_apps
from taskapp_kit.config import Settings, load
from taskapp_kit.evaluate import source as sources
from taskapp_kit.evaluate.export import conversation, task_rows, training_data
from taskapp_kit.evaluate.export import report as reports
from taskapp_kit.evaluate.export import write as writing
from taskapp_kit.records import seeds as seed_lists
from taskapp_kit.records.formatting import counted
from taskapp_kit.records.protocols import RolloutQuery
from taskapp_kit.rollout import source as rollout_source

FORMATS = ("jsonl", "parquet", "sft", "dpo", "tokens", "inspect")
TRAINING_ONLY = {
    **dict.fromkeys(("min_reward", "terminated", "max_tokens", "app", "demonstrations"), ("sft", "dpo")),
    "best_of_seed": ("sft",),
    **dict.fromkeys(("margin", "pairs"), ("dpo",)),
}
"""The formats of each option that only some formats accept."""

LEARNED = options(
    click.option("--min-reward", type=float, metavar="X", help="sft, dpo: only rollouts with a reward of at least X."),
    click.option("--terminated", is_flag=True, help="sft, dpo: only episodes that were not truncated."),
    click.option("--max-tokens", type=click.IntRange(1), metavar="N", help="sft, dpo: omit longer conversations."),
    click.option(
        "--demonstrations",
        is_flag=True,
        help="sft, dpo: also include rollouts of policies without a model, such as gold or a person.",
    ),
    click.option("--best-of-seed", is_flag=True, help="sft: only the best rollout of each seed."),
    click.option(
        "--margin",
        type=click.FloatRange(0, min_open=True),
        metavar="X",
        help="dpo: minimum difference between the rewards of a pair.  [default: 0.1]",
    ),
    click.option("--pairs", type=click.IntRange(1), metavar="N", help="dpo: at most N pairs per seed.  [default: 1]"),
)
"""Options that select training data."""


class ExportGroup(click.Group):
    """A command with a SOURCE argument that also has subcommands.

    A directory with the same name as a subcommand, such as `tasks`, must be written as `./tasks`.
    """

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the context of the subcommand that the first argument names, or of this command otherwise."""
        below = self.commands.get(args[0]) if args else None
        if below is not None:
            return below.make_context(f"{info_name} {args[0]}", args[1:], parent=parent, **extra)
        return super().make_context(info_name, args, parent=parent, **extra)

    allow_extra_args = False
    allow_interspersed_args = True
    parse_args = click.Command.parse_args
    invoke = click.Command.invoke
    collect_usage_pieces = click.Command.collect_usage_pieces


@click.group(
    cls=ExportGroup,
    epilog=example(
        "taskapp export r1 --format sft --min-reward 0.9 --best-of-seed --out sft.jsonl",
        "taskapp export r1 --format dpo --margin 0.5 --out dpo.jsonl",
        "taskapp export .taskapp/rollouts.db --format parquet --out rollouts.parquet",
        "taskapp export r1 --format inspect --out r1.eval",
        "taskapp export http://127.0.0.1:8001 --format jsonl --env adder --out rollouts.jsonl",
        "taskapp export tasks adder.py --split train --format jsonl --out tasks.jsonl",
    ),
)
@click.argument("source", metavar="DIR|STORE|URL")
@click.option("--format", "kind", type=click.Choice(FORMATS), required=True, help="See above.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, metavar="FILE", help="The file to write."
)
@click.option(
    "--split", metavar="NAME", help="Only this split.  [default: train for sft, dpo and tokens, otherwise all]"
)
@FILTERS
@LEARNED
@click.option(
    "--app",
    metavar="APP",
    help="sft, dpo: the app that declares the actions.  [default: the app of the evaluation or the URL]",
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@SERVER_KEY
@ENV_FILES
@json_option("Print the report as JSON.")
def command(
    source: str,
    kind: Any,
    out: Path,
    split: str | None,
    force: bool,
    key: str | None,
    env_files: tuple[str, ...],
    as_json: bool,
    **filters: Any,
) -> None:
    """Write stored rollouts to a file for other programs.

    \b
    jsonl    one JSON object per complete rollout
    parquet  one row per rollout (extra `parquet`)
    sft      one chat per rollout, with its tools, for TRL's SFTTrainer
    dpo      a better and a worse chat of the same seed, for TRL's DPOTrainer
    tokens   token ids of prompts and replies, with log-probabilities
    inspect  an Inspect log (.eval)

    DIR is an evaluation's directory, STORE the address of a store (a path, sqlite:///PATH, postgresql://…), and URL a
    running task app. No format contains private data, such as end states or the private fields of tasks.
    """
    training = {name: None if filters[name] is False else filters[name] for name in TRAINING_ONLY}
    query = RolloutQuery(**{name: value for name, value in filters.items() if name not in TRAINING_ONLY})
    for name, value in training.items():
        if value is not None and kind not in TRAINING_ONLY[name]:
            flag = "--" + name.replace("_", "-")
            raise click.UsageError(f"{flag} needs --format {' or '.join(TRAINING_ONLY[name])}.")
    if out.exists() and not force:
        raise click.UsageError(f"{out} exists. Pass --force to replace it.")
    app = training.pop("app")
    learned = training_data.TrainingFilters(**{name: value for name, value in training.items() if value is not None})
    settings = load(env_files=env_files)
    key = key or settings.environment_api_key

    async def exported() -> reports.ExportReport:
        rollouts = sources.open_source(source, key=key)
        try:
            return await writing.export(
                rollouts,
                kind,
                out,
                scope=reports.ExportScope(query, split),
                filters=learned,
                find_tools=lambda: _tools(rollouts, source, key, settings, app),
            )
        finally:
            await rollouts.close()

    with shown_from(shown_source(source)):
        report = asyncio.run(exported())
    if as_json:
        lines = report.rollouts if report.lines is None else report.lines
        counts = {"rollouts": report.rollouts, "lines": lines, "seen": report.seen}
        print_json({"file": str(out), **counts, "left_out": dict(report.left_out), "notes": report.notes})
    else:
        _print(report, out, kind)


def _print(report: reports.ExportReport, out: Path, kind: str) -> None:
    what = counted(report.rollouts, "rollout")
    if report.lines is not None:
        what = f"{counted(report.lines, 'pair')} of {what}"
    echo(f"{what} of {report.seen} in {out} ({kind}, {size_words(out.stat().st_size)}).")
    for note in report.notes:
        echo(f"  {note}")
    for reason, many in report.left_out.most_common():
        echo(f"  omitted: {many}, {reason}")


TASK_FORMATS = ("jsonl", "parquet", "hf", "verl", "nemo")


@command.command(
    epilog=example(
        "taskapp export tasks examples/capitals.py --format jsonl --out tasks.jsonl",
        "taskapp export tasks crafter --split train --seeds 0-999 --format hf --out crafter-tasks",
    )
)
@click.argument("app")
@click.option("--format", "kind", type=click.Choice(TASK_FORMATS), required=True, help="See above.")
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, metavar="PATH", help="The file, or for hf the directory."
)
@ENVIRONMENT
@click.option("--split", metavar="NAME", help="The split.  [default: the environment's first]")
@click.option("--seeds", metavar="LIST", help="Such as 0-999 or 0,5,9.  [default: the first 10 000 of the split]")
@ENV_CONFIG
@click.option("--output-mode", type=OUTPUT_MODE, default="tool_calls", help="The format of model replies.")
@click.option("--force", is_flag=True, help="Replace PATH if it exists.")
@ENV_FILES
@json_option("Print the report as JSON.")
def tasks(
    app: str,
    kind: Any,
    out: Path,
    environment: str | None,
    split: str | None,
    seeds: str | None,
    env_config: dict[str, Any] | None,
    output_mode: Any,
    force: bool,
    env_files: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write an app's tasks as rows for trainers, with the first prompt, the tools and the seed.

    \b
    jsonl    one JSON object per task
    parquet  one row per task (extra `parquet`)
    hf       a directory for datasets.load_dataset (extra `parquet`)
    verl     Parquet rows for verl (extra `parquet`)
    nemo     JSON Lines for NeMo Gym

    Each episode is reset to get its prompt, but not played. Rows contain no private fields of tasks.
    """
    if out.exists() and not force:
        raise click.UsageError(f"{out} exists. Pass --force to replace it.")
    settings = load(env_files=env_files)
    target, listed = local_app.open_app(app, settings), None if seeds is None else seed_lists.Seeds.read(seeds)

    async def exported() -> int:
        async with local_app.local_service(target, settings, skip_judges=True) as service:
            rows = task_rows.task_rows(
                service, environment=environment, split=split, seeds=listed, config=env_config, output_mode=output_mode
            )
            return await task_rows.export_tasks(rows, kind, out)

    with local_app.failure_shown():
        count = asyncio.run(exported())
    if as_json:
        print_json({"path": str(out), "tasks": count, "format": kind})
    else:
        echo(f"{counted(count, 'task')} in {out} ({kind}).")


async def _tools(
    source: rollout_source.RolloutSource, reference: str, key: str | None, settings: Settings, app: str | None
) -> conversation.ToolSchemas | None:
    """Return the tools of --app, of the evaluation's app, or of the server at the URL. Return None if no app is known."""
    named = local_app.app_named(app, reference, source.config)
    if named is not None:
        return conversation.ToolSchemas.of_app(local_app.open_app(named, settings).freeze())
    if not is_url(reference):
        return None
    async with task_apps.TaskAppClient(reference, key) as client:
        return conversation.ToolSchemas.of_info(await client.info())
