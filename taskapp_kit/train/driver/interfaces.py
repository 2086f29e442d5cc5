"""The interfaces that update and store a job's policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from taskapp_kit.train.checkpoints.facts import JobPosition
from taskapp_kit.train.turns import TrainingRow, UpdateMetrics


class Learner(Protocol):
    """Updates the policy whose rollouts are played."""

    async def learn(self, rows: Sequence[TrainingRow]) -> UpdateMetrics:
        """Make one update, and give the sampler the new weights. Raises TrainingError, BadArgument."""
        ...


@dataclass(frozen=True, slots=True)
class SavedJob:
    """A job at the moment of a checkpoint.

    Attributes:
        position: The position of the ledger (`Ledger.position`).
        state: The last reported state.
        at: The progress of the job.
        checkpoint: The name of the saved model, "" while it is being saved.
    """

    position: int
    state: Mapping[str, Any]
    at: JobPosition
    checkpoint: str = ""


class CheckpointSink(Protocol):
    """Stores the policy that the driver trains, and restores it in a later process."""

    async def save(self, saved: SavedJob, score: float | None) -> str:
        """Store the policy durably, and return its name. score: the reward of its evaluation.

        Raises CheckpointError, without changing earlier checkpoints.
        """
        ...

    async def restore(self) -> SavedJob | None:
        """Restore learner and sampler from the last complete checkpoint, and return it; None without one.

        Raises CheckpointError if it does not fit the model.
        """
        ...

    async def results(self) -> Mapping[str, Any]:
        """Return the part of the job's results about its checkpoints."""
        ...
