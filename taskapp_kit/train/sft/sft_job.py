"""One fine-tuning job. Updates are deterministic, so a resumed job ends with the same weights as an uninterrupted job.

A job is identified by its config, its conversations and its base model. Its checkpoints have the format of other jobs'
checkpoints, with `ft` instead of `rl` in the name, and also contain the metric points.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import orjson

from taskapp_kit.errors import ConfigError
from taskapp_kit.records.formatting import counted
from taskapp_kit.records.seeds import derived_rng
from taskapp_kit.train.checkpoints.facts import CheckpointFacts, JobPosition, Kind, TrainedModelName
from taskapp_kit.train.checkpoints.stored import checkpoint_folders
from taskapp_kit.train.checkpoints.writer import CheckpointWriter
from taskapp_kit.train.driver.interfaces import SavedJob
from taskapp_kit.train.driver.learning import JobCheckpoints, on_thread
from taskapp_kit.train.job_start import JobNeeds, available_to, model_sizes, needs_of
from taskapp_kit.train.models.adapters import adapter_part, with_adapter
from taskapp_kit.train.models.loading import load_model
from taskapp_kit.train.models.sources import ModelSource, described_by, find_model
from taskapp_kit.train.sft.conversations import (
    ChosenConversations,
    ExportedConversation,
    chosen_conversations,
    conversation_rows,
    not_learned_as_tokens,
)
from taskapp_kit.train.sft.sft_settings import HELD_OUT_LOSS, LOSS, SftSettings
from taskapp_kit.train.turns import TrainingRow
from taskapp_kit.train.update.memory import BatchShape, predicted_positions
from taskapp_kit.train.update.policy_update import PolicyUpdate
from taskapp_kit.train.update.supervised import supervised_loss, supervised_step

KIND: Kind = "ft"


class SftObserver(Protocol):
    """Receives the progress of a running job."""

    def began(self, job_id: str, sentences: Sequence[str]) -> None:
        """Called when the job starts or resumes. `sentences` describe its data and needs."""

    def updated(self, done: int, total: int, values: dict[str, float]) -> None:
        """Called after each update, and for the initial model (`done` is 0). `values` are metrics by name."""


@dataclass(frozen=True, slots=True)
class SftResult:
    """The result of a job that has ended.

    Attributes:
        job_id: The job's id.
        model: The last checkpoint.
        best: The checkpoint with the lowest held-out loss, or None if no conversations are held out.
        best_loss: The held-out loss of `best`.
        base: The base model.
        updates: The number of updates.
        learned: The number of conversations that were trained on.
        held_out: The number of held-out conversations.
        tokens: The number of tokens that were trained on.
        left_out: The number of omitted conversations by reason.
        not_as_tokens: The counts that `not_learned_as_tokens` returned for the conversations that were trained on.
        before: The initial held-out loss in nats per token, or None if no conversations are held out.
        after: The final held-out loss in nats per token, or None.
        points: The `name`, `step`, `value` and `created_at` of all metric points.
    """

    job_id: str
    model: str
    best: str | None
    best_loss: float | None
    base: str
    updates: int
    learned: int
    held_out: int
    tokens: int
    left_out: dict[str, int]
    not_as_tokens: dict[str, int]
    before: float | None
    after: float | None
    points: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class SftRows:
    """The rows on which a job trains, and the held-out rows on which it is measured."""

    learned: list[TrainingRow]
    held_out: list[TrainingRow]
    left_out: Counter[str]
    not_as_tokens: Counter[str]

    def batch(self, number: int, size: int) -> list[TrainingRow]:
        """Return the rows of an update. The first update has the number 0.

        The order of the rows differs in each epoch. The last batch of an epoch may be smaller.
        """
        epoch, place = divmod(number, self.per_epoch(size))
        order = list(range(len(self.learned)))
        derived_rng("sft", "order", epoch).shuffle(order)
        return [self.learned[index] for index in order[place * size : (place + 1) * size]]

    def per_epoch(self, size: int) -> int:
        """Return the number of updates of one epoch."""
        return -(-len(self.learned) // size)


async def run_sft(
    document: dict[str, Any],
    settings: SftSettings,
    models: Path,
    aliases: dict[str, str],
    observer: SftObserver,
    *,
    fresh: bool = False,
) -> SftResult:
    """Run the job to its end. If it has checkpoints, continue from the last checkpoint.

    Args:
        document: The config, which checkpoints store.
        settings: The settings in the config.
        models: The models directory.
        aliases: The operator's aliases.
        observer: Receives the progress.
        fresh: Whether to start a new job under a new name.

    Raises:
        ConfigError: The model or the conversations cannot be used.
        JobError: The available memory or disk space is too small.
        TrainingError: An update fails.
        CheckpointError: A checkpoint cannot be read or saved.
    """
    # Fine-tuning needs no rollouts, task app, keys or gateway, so it does not run on a backend. It uses the same code as RL
    # for everything that affects the result: renderer, log-probabilities, micro-batches, optimizer and checkpoints.
    chosen = chosen_conversations(settings)
    name = settings.aliases.get(settings.model, settings.model)
    source = find_model(name, models, {} if settings.model in settings.aliases else aliases)
    job_id = _job_id(document, chosen, source, models, fresh=fresh)
    loaded = await on_thread(load_model, source)
    rows = _rows(chosen, loaded.renderer, loaded.model.config.max_position_embeddings)
    folder = _folder(source, job_id, models)
    needs = _needs(settings, rows, source, folder)
    model = loaded.model if settings.lora is None else with_adapter(loaded.model, settings.lora)
    update = PolicyUpdate(model, replace(settings.update, draw=job_id))
    facts = CheckpointFacts(
        job=job_id,
        position=JobPosition(0, 0),
        weights_version=0,
        origin=source.origin,
        config=document,
        seeds={
            "train": _seeds(chosen.learned),
            "evaluation": _seeds(chosen.held_out),
            "environments": sorted({each.environment for each in chosen.learned}),
        },
        kind=KIND,
    )
    parts = described_by(source) | ({} if settings.lora is None else adapter_part(settings.lora))
    with CheckpointWriter(folder) as writer:
        checkpoints = JobCheckpoints(writer, update, None, facts, parts)
        saved = await checkpoints.restore()
        job = SftRun(settings, rows, update, checkpoints, observer, list(saved.state["points"]) if saved else [])
        observer.began(job_id, [*_sentences(settings, source, rows, job), needs.sentence])
        await job.run()
        found = await checkpoints.results()
    held_out = [point["value"] for point in job.points if point["name"] == HELD_OUT_LOSS]
    return SftResult(
        job_id=job_id,
        model=found["model"],
        best=found["best"],
        best_loss=None if found["best_score"] is None else -found["best_score"],
        base=source.name,
        updates=update.version,
        learned=len(rows.learned),
        held_out=len(rows.held_out),
        tokens=sum(row.trained for row in rows.learned),
        left_out=dict(rows.left_out),
        not_as_tokens=dict(rows.not_as_tokens),
        before=held_out[0] if held_out else None,
        after=held_out[-1] if held_out else None,
        points=job.points,
    )


@dataclass(slots=True)
class SftRun:
    """The updates of a job. `points` are all metric points so far."""

    settings: SftSettings
    rows: SftRows
    update: PolicyUpdate
    checkpoints: JobCheckpoints
    observer: SftObserver
    points: list[dict[str, Any]]

    @property
    def total(self) -> int:
        """The total number of updates."""
        return self.settings.epochs * self.rows.per_epoch(self.settings.batch_size)

    async def run(self) -> None:
        """Make the remaining updates."""
        settings = self.settings
        per_epoch = self.rows.per_epoch(settings.batch_size)
        if not self.points:
            self._report(0, await self._measured())
        for number in range(self.update.version, self.total):
            metrics = await on_thread(supervised_step, self.update, self.rows.batch(number, settings.batch_size))
            done = metrics.version
            values = {
                LOSS: metrics.loss,
                "gradient_norm": metrics.gradient_norm,
                "update_tokens": float(metrics.tokens),
            }
            if done == self.total or done % (settings.evaluate_every or per_epoch) == 0:
                values |= await self._measured()
            self._report(done, values)
            if done == self.total or done % (settings.save_every or per_epoch) == 0:
                score = values.get(HELD_OUT_LOSS)
                saved = SavedJob(0, {"done": done, "points": self.points}, JobPosition(done, 0))
                await self.checkpoints.save(saved, None if score is None else -score)

    async def _measured(self) -> dict[str, float]:
        if not self.rows.held_out:
            return {}
        return {HELD_OUT_LOSS: await on_thread(supervised_loss, self.update, self.rows.held_out)}

    def _report(self, done: int, values: dict[str, float]) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
        self.points += [
            {"name": name, "step": done, "value": value, "created_at": now} for name, value in values.items()
        ]
        self.observer.updated(done, self.total, values)


def _rows(chosen: ChosenConversations, renderer: Any, context_tokens: int) -> SftRows:
    learned, unfit = conversation_rows(renderer, chosen.learned, context_tokens)
    held_out, unfit_held_out = conversation_rows(renderer, chosen.held_out, context_tokens)
    left_out = chosen.left_out + unfit + unfit_held_out
    if not learned:
        reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        raise ConfigError(f"No conversation can be trained on. Omitted: {reasons}.")
    return SftRows(learned, held_out, left_out, not_learned_as_tokens(renderer, chosen.learned))


def _job_id(
    document: dict[str, Any], chosen: ChosenConversations, source: ModelSource, models: Path, *, fresh: bool
) -> str:
    """Return the id of the last job with this config, conversations and model, or a new id if none exists or `fresh` is true."""
    named = [document, source.name, [[_named(each) for each in some] for some in (chosen.learned, chosen.held_out)]]
    digest = hashlib.sha256(orjson.dumps(named, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]

    def job(number: int) -> str:
        return f"{KIND}_{digest}" if number == 1 else f"{KIND}_{digest}-{number}"

    def begun(number: int) -> bool:
        folder = _folder(source, job(number), models)
        return folder.is_dir() and bool(checkpoint_folders(folder))

    number = 1
    while begun(number + 1 if not fresh else number):
        number += 1
    return job(number)


def _named(conversation: ExportedConversation) -> dict[str, Any]:
    return {
        **asdict(conversation),
        "answers": sorted(conversation.answers),
        "weightless": sorted(conversation.weightless),
    }


def _folder(source: ModelSource, job_id: str, models: Path) -> Path:
    return TrainedModelName.of(source.origin.base, job_id, "checkpoint-0", KIND).folder(models).parent


def _seeds(conversations: Sequence[ExportedConversation]) -> list[int]:
    return sorted({each.seed for each in conversations if each.seed is not None})


def _needs(settings: SftSettings, rows: SftRows, source: ModelSource, folder: Path) -> JobNeeds:
    """Return the memory and disk space that a job with these rows needs. Raises JobError if too little is available."""
    every = rows.learned + rows.held_out
    shape = BatchShape(
        rows=settings.batch_size,
        length=max(len(row.ids) for row in every),
        predicted=max(len(predicted_positions([row])) for row in every),
        sampled=0,
    )
    memory, disk = available_to(folder)
    return needs_of(settings.update, settings.lora, shape, model_sizes(source), memory=memory, disk=disk).checked()


def _sentences(settings: SftSettings, source: ModelSource, rows: SftRows, job: SftRun) -> list[str]:
    tokens = sum(row.trained for row in rows.learned)
    left_out = "".join(f" Omitted: {count} {reason}." for reason, count in rows.left_out.items())
    how = "all weights" if settings.lora is None else f"an adapter of rank {settings.lora.rank}"
    found = [
        f"{counted(len(rows.learned), 'conversation')} with {tokens} reply tokens, {len(rows.held_out)} held out.{left_out}",
        f"{counted(job.total, 'update')} of {how} of {source.name}.",
        *(f"{counted(count, 'answer')} {phrase}." for phrase, count in rows.not_as_tokens.items()),
    ]
    return [*found, source.alias_note] if source.alias_note else found
