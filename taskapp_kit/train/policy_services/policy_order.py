"""`PolicyOrder`, from which a process loads a job's policy. It contains none of the task app's API keys."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from taskapp_kit.jobs.server.engine import JobDocument
from taskapp_kit.train.checkpoints.facts import job_folder
from taskapp_kit.train.job_settings import LoraSettings, TrainingSettings, training_settings
from taskapp_kit.train.models.adapters import with_adapter
from taskapp_kit.train.models.loading import load_model
from taskapp_kit.train.models.sources import ModelSource, named_model

WEIGHTS = ".weights-"
"""The prefix of the directory with an incarnation's weights, in the job's directory. The incarnation's number follows."""


@dataclass(frozen=True, slots=True)
class PolicyOrder:
    """What a process needs to load a job's policy as it was before the first update.

    Attributes:
        job: The job without the task app's address.
        models: The models directory, on a disk that all processes share.
        aliases: The operator's aliases of models.
        open_paths: Whether the job's model may be a path.
        incarnation: The job's incarnation. Each incarnation has a separate directory of weights, so that no process
            reads weights that an earlier incarnation wrote.
    """

    job: JobDocument
    models: str
    aliases: Mapping[str, str]
    open_paths: bool
    incarnation: int

    @classmethod
    def of(
        cls, job: JobDocument, models: Path, aliases: Mapping[str, str], *, open_paths: bool, incarnation: int
    ) -> PolicyOrder:
        """Return the order for a job."""
        return cls(replace(job, task_app_url=""), str(models.absolute()), dict(aliases), open_paths, incarnation)


@dataclass(frozen=True, slots=True)
class OrderedPolicy:
    """The job settings and the model that an order describes, with the directories of checkpoints and new weights."""

    order: PolicyOrder
    settings: TrainingSettings
    source: ModelSource

    @classmethod
    def read(cls, order: PolicyOrder) -> OrderedPolicy:
        """Read an order. Raises JobError if the job is invalid, and ConfigError if its model is not found."""
        settings = training_settings(order.job)
        source = named_model(settings, Path(order.models), order.aliases, open_paths=order.open_paths)
        return cls(order, settings, source)

    @property
    def folder(self) -> Path:
        """The directory of the job's checkpoints."""
        return job_folder(Path(self.order.models), self.source.origin.base, self.order.job.job_id)

    @property
    def weights(self) -> Path:
        """The directory of this incarnation's weights."""
        return self.folder / f"{WEIGHTS}{self.order.incarnation}"

    def load(self) -> Any:
        """Load the policy, with the adapter if the job trains an adapter. Raises ConfigError if the model cannot be loaded."""
        return trained_policy(load_model(self.source).model, self.settings.lora)


def trained_policy(model: Any, lora: LoraSettings | None) -> Any:
    """Return the policy to train: the model, with an adapter if `lora` is set. The model is changed in place."""
    return model if lora is None else with_adapter(model, lora)


def leave_a_processor(processes: int = 1) -> None:
    """Limit torch's threads, so that one processor remains free for the task app and the backend.

    `processes` is the number of processes that share the other processors.
    """
    # OpenMP's threads spin while they wait. On two busy cores, updates of `tiny` took more than three times as long with
    # two threads as with one thread.
    threads = max(1, (os.cpu_count() or 1) - 1) // processes
    torch.set_num_threads(max(1, min(torch.get_num_threads(), threads)))
