"""`taskapp judge`: measure how well an app's judges agree with people."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from taskapp_kit.cli import local_app
from taskapp_kit.cli.options import ENV_FILES, json_option
from taskapp_kit.cli.output.terminal import clean, console, echo, example, number, print_json, table
from taskapp_kit.config import Settings, load
from taskapp_kit.declare.app import TaskApp
from taskapp_kit.errors import ConfigError
from taskapp_kit.evaluate import judge_labels as labelled_answers
from taskapp_kit.rollout.score import calibration
from taskapp_kit.store import open_store

ROWS = (
    ("labels", "labels"),
    ("accuracy", "accuracy"),
    ("kappa", "Cohen's κ"),
    ("spearman", "Spearman"),
    ("pairs", "pairs in order"),
    ("mean_difference", "score − label, mean"),
    ("length_bias", "length bias"),
    ("position_bias", "position bias"),
    ("repeat_spread", "spread between repeats"),
    ("calls", "calls"),
    ("unusable_answers", "unusable answers"),
    ("tokens", "tokens"),
    ("cost", "cost, US dollars"),
    ("seconds", "seconds of calls"),
)


@click.group(epilog=example("taskapp judge calibrate explain.py --labels labels.jsonl"))
def command() -> None:
    """Compare the scores of an app's judges with people's labels."""


@command.command(
    epilog=example(
        "taskapp judge calibrate explain.py --labels labels.jsonl",
        "taskapp judge calibrate explain.py --labels labels.jsonl --repeats 3 --json",
        "taskapp judge calibrate game.py --labels labels.jsonl --store sqlite:///rollouts.db",
        "taskapp judge calibrate game.py --annotations .taskapp/rollouts.db",
    )
)
@click.argument("app", metavar="APP")
@click.option(
    "--labels",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="F",
    help="A JSON Lines file with one labeled answer per line.",
)
@click.option("--annotations", metavar="DIR|STORE", help="Use scores entered in the viewer instead of --labels.")
@click.option("--repeats", type=click.IntRange(1, 100), default=1, metavar="N", help="Judge each answer N times.")
@click.option(
    "--threshold",
    type=float,
    metavar="X",
    help="The lowest score that counts as good, for accuracy and κ.  [default: the middle of the scale]",
)
@click.option("--concurrency", type=click.IntRange(1, 256), default=8, metavar="N", help="Answers judged concurrently.")
@click.option("--store", metavar="URL", help="The store with the rollouts that labels identify by rollout_id.")
@ENV_FILES
@json_option("Print JSON, including each answer's score.")
def calibrate(
    app: str, labels: Path | None, annotations: str | None, repeats: int, threshold: float | None, concurrency: int,
    store: str | None, env_files: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Let the judges of APP score labeled answers, and measure how well they agree with the labels.

    Each line of the --labels file is a JSON object such as {"seed": 0, "answer": "…", "label": 0.5}. The answer is the
    text (or the action) to play with this seed. The label is a number on the judge's scale, or one of the judge's
    choices. To label a stored rollout, write {"rollout_id": "…", "label": …}. For a judge of groups, write "answers" or
    "rollout_ids", and "labels". If the app has several judges, add "judge" with the judge's name. "environment",
    "split" and "config" are optional and mean the same as in a rollout request.
    """
    if (labels is None) == (annotations is None):
        raise click.UsageError("Pass exactly one of --labels and --annotations.")
    if annotations is not None:
        if store is not None:
            raise click.UsageError("--annotations already names the store. Omit --store.")
        directory = Path(annotations)
        store = str(directory / "rollouts.db") if directory.is_dir() else annotations
    settings = load({"store": store}, env_files=env_files)
    target = local_app.open_app(app, settings)
    name = target.freeze().name
    if not target.freeze().judges:
        raise ConfigError(f"The app {name!r} declares no judges.", hint="Declare one with @app.judge.")
    text = None if labels is None else (labels.name, labels.read_bytes())
    results = asyncio.run(_judged(target, text, settings, repeats=repeats, concurrency=concurrency))
    by_judge: dict[str, list[calibration.CaseResult]] = {}
    for result in results:
        by_judge.setdefault(result.case.judge.name, []).append(result)
    reports = [calibration.report(of_one, threshold=threshold) for of_one in by_judge.values()]
    if as_json:
        cases = [
            {
                "place": item.case.place,
                "judge": item.case.judge.name,
                "scores": item.scores,
                "labels": list(item.case.labels),
                "error": item.error,
            }
            for item in results
        ]
        print_json({"judges": reports, "cases": cases})
    else:
        _print(reports)
    if any(item["failed"] for item in reports):
        raise click.exceptions.Exit(1)


def _print(reports: list[dict[str, Any]]) -> None:
    shown = table("", *(item["judge"] for item in reports), right=tuple(item["judge"] for item in reports))
    for name, words in ROWS:
        shown.add_row(words, *(number(item[name]) for item in reports))
    console().print(shown)
    for item in reports:
        if item["threshold"] is not None:
            console().print(f"{item['judge']}: accuracy and κ count a score of {item['threshold']:g} or more as good.")
        for failed in item["failed"]:
            echo(f"{item['judge']}, {failed['place']}: {clean(failed['error'])}", err=True)


async def _judged(
    app: TaskApp, labels: tuple[str, bytes] | None, settings: Settings, **more: int
) -> list[calibration.CaseResult]:
    """Score each labeled answer. labels: the --labels file's name and content, or None for the store's annotations."""
    store = local_app.store_of(settings.store) if labels is not None else open_store(str(settings.store), create=False)
    try:
        if labels is None:
            assert store is not None, "--annotations named it"
            labels = "annotation", await labelled_answers.annotated_labels(app, store)
        name, text = labels
        return await labelled_answers.judge_labels(app, name, text, settings, store, **more)
    finally:
        if store is not None:
            await store.close()
