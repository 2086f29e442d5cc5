"""Checks and reports before a job runs: memory and disk, settings, and keys of the config without an effect.

    needs = measured_needs(settings, source, checkpoints_folder)  # raises JobError if they exceed what is available
    await ledger.report(*start_events(settings, needs, unused_keys(job, settings.plan)))

This module does not import torch.
"""

from __future__ import annotations

import json
import math
import resource
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from taskapp_kit.errors import ConfigError, JobError
from taskapp_kit.jobs.client.config.value_types import AGENT_WORDS
from taskapp_kit.jobs.server.engine import Event
from taskapp_kit.jobs.server.rollout_plan import JobPlan
from taskapp_kit.records.formatting import counted
from taskapp_kit.system.available_memory import available_memory
from taskapp_kit.train.checkpoints.writer import FULLY_STORED, size_words
from taskapp_kit.train.driver.reports import SEEDS_SHOWN
from taskapp_kit.train.job_settings import LoraSettings, TrainingSettings
from taskapp_kit.train.models.sources import ModelSource, seeds_trained_on
from taskapp_kit.train.sampler import BATCH_SIZE
from taskapp_kit.train.update.memory import (
    BatchShape,
    MemoryEstimate,
    ModelShape,
    TrainerMode,
    adapter_parameters,
    checkpoint_bytes,
    estimate_memory,
    memory_problem,
)
from taskapp_kit.train.update.update_settings import CLIP_RANGES, UpdateSettings

PROMPT_TOKENS = 256
"""Assumed number of tokens of all prompts in an episode. The real number is known only after the first rollout."""
LONGEST_ROW = 1024
"""Maximum row length in tokens that the estimate assumes, so that jobs are not rejected for rows they may never have."""
MAX_CONFIG_BYTES = 1 << 20
RSS_UNIT = 1 if sys.platform == "darwin" else 1024
"""Number of bytes in the unit in which `getrusage` reports memory."""
MAX_HEADER_BYTES = 100_000_000
"""The maximum size of a header that safetensors itself accepts."""


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """The sizes of a base model. `context_tokens` limits a prompt together with its reply."""

    shape: ModelShape
    parameters: int
    context_tokens: int


@dataclass(frozen=True, slots=True)
class JobNeeds:
    """The memory and disk that a job needs, in bytes.

    Attributes:
        estimate: The memory that the job needs.
        row_tokens: The length of the longest row that the estimate assumes, in tokens.
        memory: The memory that is available, or None if unknown.
        checkpoints: The disk space for all checkpoints that exist at the same time.
        disk: The disk space that is available for checkpoints.
        problem: Why the job cannot run, or None if it can.
    """

    estimate: MemoryEstimate
    row_tokens: int
    memory: int | None
    checkpoints: int
    disk: int
    problem: str | None

    def checked(self) -> Self:
        """Return this object. Raises JobError if the job cannot run."""
        if self.problem is not None:
            raise JobError(self.problem)
        return self

    @property
    def sentence(self) -> str:
        """A sentence for people that compares the needed memory and disk space with what is available."""
        free = "" if self.memory is None else f" of {size_words(self.memory)} available"
        return (
            f"Needs about {size_words(self.estimate.total)} of memory{free} for rows of {self.row_tokens} tokens, and "
            f"{size_words(self.checkpoints)} of {size_words(self.disk)} on the disk for checkpoints."
        )


def model_sizes(source: ModelSource) -> ModelSizes:
    """Read the sizes of a model, or of an adapter's base model, from config.json and the headers of the weight files.

    Raises ConfigError if they cannot be read.
    """
    while source.base is not None:
        source = source.base
    folder = source.folder
    try:
        with (folder / "config.json").open("rb") as stream:
            config = SimpleNamespace(**json.loads(stream.read(MAX_CONFIG_BYTES)))
        files = sorted(folder.glob("model*.safetensors"))
        parameters = sum(map(_parameters, files))
        sizes = ModelSizes(ModelShape.of(config), parameters, config.max_position_embeddings)
        if not all(isinstance(value, int) for value in (*astuple(sizes.shape), sizes.context_tokens)):
            raise ValueError("a size is not an integer")
    except (OSError, ValueError, TypeError, AttributeError, KeyError, ArithmeticError) as error:
        raise ConfigError(
            f"The sizes of the model in {folder} cannot be read ({type(error).__name__}: {str(error)[:200]}).",
            hint="Expected model.safetensors, and config.json of a Llama, Qwen2 or Qwen3 model.",
        ) from error
    if not parameters:
        raise ConfigError(f"{folder} contains no weights.", hint="Expected model.safetensors next to config.json.")
    return sizes


def job_needs(settings: TrainingSettings, sizes: ModelSizes, *, memory: int | None, disk: int) -> JobNeeds:
    """Return what a job needs.

    `memory` is the number of bytes that the job's process can use, or None if unknown. `disk` is the number of bytes
    that checkpoints can use: the free disk space plus the size of existing checkpoints.
    """
    batch = _batch(settings, sizes.context_tokens)
    services = settings.services
    if services is None:
        return needs_of(settings.update, settings.lora, batch, sizes, memory=memory, disk=disk)
    here = memory if services.backend == "local" else None  # on Ray, replicas may use the memory of other machines
    return needs_of(settings.update, settings.lora, batch, sizes, memory=here, disk=disk, replicas=services.replicas)


def needs_of(
    update: UpdateSettings,
    lora: LoraSettings | None,
    batch: BatchShape,
    sizes: ModelSizes,
    *,
    memory: int | None,
    disk: int,
    replicas: int = 0,
) -> JobNeeds:
    """Return what updates with batches of this shape need.

    `job_needs` describes `memory` and `disk`, and `estimate_memory` describes `replicas`.
    """
    mode: TrainerMode = "full" if lora is None else "lora"
    adapter_like = lora or LoraSettings()
    adapter = adapter_parameters(sizes.shape, adapter_like.rank, adapter_like.targets)
    modes: tuple[TrainerMode, ...] = ("full", "lora")
    needed = {
        each: estimate_memory(
            sizes.shape,
            sizes.parameters,
            batch,
            mode=each,
            precision=update.precision,
            micro_batch_bytes=update.micro_batch_bytes,
            adapter=adapter,
            reference=update.beta > 0,
            values=update.loss == "ppo",
            replicas=replicas,
        )
        for each in modes
    }
    checkpoints = FULLY_STORED * checkpoint_bytes(sizes.parameters if mode == "full" else adapter)
    problem = None if memory is None else memory_problem(needed, mode, memory)
    if problem is None and checkpoints > disk:
        problem = (
            f"The job needs about {size_words(checkpoints)} for checkpoints, but only {size_words(disk)} are free. "
            "Free some disk space, or set TASKAPP_MODELS to a directory on another disk."
        )
    return JobNeeds(needed[mode], batch.length, memory, checkpoints, disk, problem)


def measured_needs(settings: TrainingSettings, source: ModelSource, checkpoints: Path) -> JobNeeds:
    """Return what a job needs. `checkpoints` is the directory for the job's checkpoints, which need not exist.

    Raises JobError if the job cannot run, and ConfigError if the sizes of the model cannot be read.
    """
    memory, disk = available_to(checkpoints)
    return job_needs(settings, model_sizes(source), memory=memory, disk=disk).checked()


def available_to(checkpoints: Path) -> tuple[int | None, int]:
    """Return the memory that this process can use (None if unknown) and the disk space for checkpoints, in bytes."""
    available = available_memory()
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT
    present = sum(file.stat().st_size for file in checkpoints.glob("*/*"))
    existing = next(folder for folder in (checkpoints, *checkpoints.absolute().parents) if folder.is_dir())
    return None if available is None else available + own, shutil.disk_usage(existing).free + present


def start_events(settings: TrainingSettings, needs: JobNeeds, unused: Sequence[str]) -> list[Event]:
    """Return the events that report how the job trains, what it needs, and which keys of its config are not used."""
    update, lora, driving, loops = settings.update, settings.lora, settings.driving, settings.driving.loops
    clip = update.clip or CLIP_RANGES.get(update.loss)
    how = "full training" if lora is None else f"LoRA of rank {lora.rank} on {counted(len(lora.targets), 'layer')}"
    every = "iteration" if driving.checkpoint_every == 1 else f"{driving.checkpoint_every} iterations"
    text = (
        f"{settings.label + ': ' if settings.label else ''}{how} of {settings.model} with {update.loss}, learning rate "
        f"{update.learning_rate:g}, temperature {update.temperature:g}. Saves a checkpoint after every {every}. {needs.sentence}"
    )
    data: dict[str, Any] = {
        "label": settings.label,
        "model": settings.model,
        "trainer_mode": "full" if lora is None else "lora",
        "variety": update.loss,
        "learning_rate": update.learning_rate,
        "warmup_iterations": update.warmup,
        "credit": driving.rows.credit,
        "stop_at": loops.stopping.stop_at,
        "patience": loops.stopping.patience,
        "iterations_ahead": loops.ahead,
        "levels": list(loops.curriculum.levels),
        "environments": {each.name: each.weight for each in loops.environments},
        "clip": None if clip is None else list(clip),
        "beta": update.beta,
        "minibatches": update.minibatches,
        "ppo": asdict(update.ppo) if update.loss == "ppo" else None,
        "precision": update.precision,
        "temperature": update.temperature,
        "evaluation_temperature": driving.evaluation_temperature,
        "max_tokens": driving.generation.max_tokens,
        "deterministic": settings.deterministic,
        "services": None if settings.services is None else asdict(settings.services),
        "checkpoint_every": driving.checkpoint_every,
        "memory_needed": needs.estimate.total,
        "memory_available": needs.memory,
        "checkpoint_bytes": needs.checkpoints,
    }
    events = [Event("rl.job.settings", text, data=data)]
    if unused:
        unused_text = f"The local engine does not use {', '.join(unused)}."
        events.append(Event("rl.config.unused", unused_text, data={"keys": list(unused)}))
    return events


def seeds_learned_before(source: ModelSource, models: Path, plan: JobPlan) -> Event | None:
    """Return a warning if evaluations play seeds on which the job's model was already trained. Otherwise return None."""
    # Checkpoints store the seeds of their training, so this also works for imported models.
    learned = seeds_trained_on(source, models, plan.env_name)
    shared = sorted(learned.intersection(plan.eval_seeds or ()))
    if not shared:
        return None
    shown = ", ".join(map(str, shared[:SEEDS_SHOWN])) + (", …" if len(shared) > SEEDS_SHOWN else "")
    return Event(
        "rl.job.warning",
        f"Evaluations play seeds on which {source.name} was already trained ({shown}), so their reward does not show how "
        "well the model plays new seeds. Choose other [evaluation] seeds.",
        "warning",
        {"shared_seeds": shared[:SEEDS_SHOWN], "shared": len(shared)},
    )


def _parameters(file: Path) -> int:
    """Return the number of weights in a safetensors file, from its header."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"the header of {file.name} has {length} bytes")
        tensors = json.loads(stream.read(length))
    return sum(math.prod(tensor["shape"]) for name, tensor in tensors.items() if name != "__metadata__")


def _batch(settings: TrainingSettings, context_tokens: int) -> BatchShape:
    plan = settings.plan
    words = (op if isinstance(op, str) else str(op.get("type", "")) for op in plan.ops)
    turns = max(sum(word in AGENT_WORDS for word in words), 1)
    # Prompts are unknown before the first rollout. Assuming longer rows would reject jobs whose rows stay short.
    length = min(PROMPT_TOKENS + turns * settings.driving.generation.max_tokens, LONGEST_ROW, context_tokens)
    return BatchShape(
        rows=plan.groups * plan.samples,
        length=length,
        predicted=min(turns * settings.driving.generation.max_tokens, length),
        sampled=1 if settings.deterministic else min(plan.at_once, BATCH_SIZE),
    )
