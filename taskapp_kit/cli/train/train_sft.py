"""`taskapp train --type sft`: fine-tune a model on conversations in this process, and print the result."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskapp_kit.cli.output.terminal import clean, console, echo, number, table
from taskapp_kit.cli.output.text_chart import CURVE_WIDTH, curve
from taskapp_kit.cli.train.job_files import JobFiles
from taskapp_kit.cli.train.train_local import DRAWING, FILES
from taskapp_kit.config import Settings
from taskapp_kit.errors import ConfigError
from taskapp_kit.jobs.client.config.sft_config import SftConfig, load_sft_config
from taskapp_kit.train.engine.local_engine import check_installed
from taskapp_kit.train.sft.sft_settings import HELD_OUT_LOSS, LOSS, sft_settings

if TYPE_CHECKING:
    from taskapp_kit.train.sft.sft_job import SftResult

LINE_SECONDS = 5.0
"""The minimum interval between two printed updates without a held-out loss, in seconds."""


class SftLines:
    """An `SftObserver` that prints the losses on stderr."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._printed_at = -LINE_SECONDS
        self.job_id: str | None = None

    def began(self, job_id: str, sentences: Sequence[str]) -> None:
        """Print the job's id and the sentences."""
        self.job_id = job_id
        self._say(f"Job {job_id}: {' '.join(sentences)}")

    def updated(self, done: int, total: int, values: Mapping[str, float]) -> None:
        """Print the losses of an update. Without a held-out loss, at most one line is printed per LINE_SECONDS."""
        if HELD_OUT_LOSS not in values and done < total and time.monotonic() - self._printed_at < LINE_SECONDS:
            return
        words = [f"{name} {number(values[key])}" for key, name in NAMES.items() if key in values]
        self._say(f"update {done} of {total}: {', '.join(words) or 'starting'}")

    def _say(self, text: str) -> None:
        self._printed_at = time.monotonic()
        if not self._quiet:
            echo(clean(text), err=True)


NAMES = {LOSS: "loss", HELD_OUT_LOSS: "held-out loss"}


def config_of(path: Path, model: str | None) -> SftConfig:
    """Read the config. model: Replaces the config's model. Raises ConfigError if the file is missing or invalid."""
    try:
        return load_sft_config(path, model)
    except FileNotFoundError as error:
        raise ConfigError(str(error)) from None


def train(
    config: SftConfig, settings: Settings, ctx: click.Context, *, fresh: bool, quiet: bool
) -> tuple[SftResult, JobFiles]:
    """Run the job to its end, and write the files about the job. Ctrl-C ends the command with status 1.

    Raises Unavailable if a package is missing, ConfigError if the model or the conversations cannot be used, JobError
    if the available memory or disk space is too small, TrainingError if an update fails, and CheckpointError if a
    checkpoint cannot be read or saved.
    """
    check_installed("`taskapp train --type sft`", also=DRAWING)
    # Fine-tuning plays no rollouts and needs no task app, keys or gateway, so it isn't a job of the backend: it runs in this
    # process. A killed command continues from its checkpoint, and the same rows in the same order give the same weights.
    job = sft_settings(config)
    from taskapp_kit.train.sft.sft_job import run_sft

    lines = SftLines(quiet=quiet)
    try:
        result = asyncio.run(run_sft(config.document, job, settings.models, settings.aliases, lines, fresh=fresh))
    except KeyboardInterrupt:
        if lines.job_id is None:
            echo("\nStopped before the job started.", err=True)
        else:
            echo(
                f"\nStopped. To continue {lines.job_id} from its last checkpoint, run the same command again.", err=True
            )
        ctx.exit(1)
    files = JobFiles(FILES / result.job_id)
    title = f"{result.job_id} · {config.document['model']['label']} · {result.base}"
    best = "" if result.best_loss is None else f"\nbest: {result.best}, held-out loss {number(result.best_loss)}"
    files.write(result.points, title + best)
    return result, files


def to_json(result: SftResult, files: JobFiles) -> dict[str, Any]:
    """Return the result as JSON."""
    return {**asdict(result), "files": {"picture": str(files.picture), "tensorboard": str(files.tensorboard)}}


def show(result: SftResult, files: JobFiles) -> None:
    """Print the curve, the model's name and the next command on stdout."""
    out = console()
    rows = table("", "")
    rows.add_row("job", result.job_id)
    rows.add_row("learned from", f"{result.learned} conversations, {result.tokens} tokens of replies")
    if result.before is not None and result.after is not None:
        rows.add_row("held-out loss", f"{number(result.before)} before, {number(result.after)} after; nats per token")
    if result.best is not None and result.best_loss is not None:
        rows.add_row("best", f"{result.best}, held-out loss {number(result.best_loss)}")
        rows.add_row("last", result.model)
    for reason, count in result.left_out.items():
        rows.add_row("left out", f"{count} {reason}")
    for phrase, count in result.not_as_tokens.items():
        rows.add_row("answers", f"{count} {phrase}")
    out.print(rows)
    drawn = curve([point["value"] for point in result.points if point["name"] == LOSS], width=CURVE_WIDTH)
    out.print("\nloss, by update", style="bold")
    for line in drawn:
        out.print(line, soft_wrap=True)
    model = result.best or result.model
    facts = {
        "picture": str(files.picture),
        "model": model,
        "next": shlex.join(["taskapp", "eval", "APP", "--model", model]),
        "or RL": f'[model] source = "{model}"',
    }
    out.print()
    for name, words in facts.items():  # not a table, so that a command can be copied as one line
        out.print(f"{name:<11}  {clean(words)}", soft_wrap=True)
