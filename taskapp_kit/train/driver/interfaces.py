"""The interfaces with which the driver updates and stores a job's policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from taskapp_kit.train.checkpoints.facts import JobPosition
from taskapp_kit.train.turns import TrainingRow, UpdateMetrics


class Learner(Protocol):
    """Updates the policy whose rollouts are played."""

    async def learn(self, rows: Sequence[TrainingRow]) -> UpdateMetrics:
        """Make one update with the rows, and replace the sampler's weights with the new weights.

        Raises BadArgument if a row is unsuitable for training, and TrainingError if the update fails.
        """
        ...


@dataclass(frozen=True, slots=True)
class SavedJob:
    """A job at the moment of a checkpoint.

    Attributes:
        position: The position in the ledger (`Ledger.position`).
        state: The state that the driver last reported to the ledger.
        at: The number of the last finished iteration, and the job's incarnation.
        checkpoint: The name of the saved model, or "" while it is being saved.
    """

    position: int
    state: Mapping[str, Any]
    at: JobPosition
    checkpoint: str = ""


class CheckpointSink(Protocol):
    """Stores the policy that the driver trains, and restores it in a later process."""

    async def save(self, saved: SavedJob, score: float | None) -> str:
        """Store the policy durably, and return the checkpoint's name. `score` is the policy's reward in an evaluation.

        Raises CheckpointError if the checkpoint cannot be saved. Earlier checkpoints are unchanged.
        """
        ...

    async def restore(self) -> SavedJob | None:
        """Restore the learner and the sampler from the last complete checkpoint.

        Return the job at that checkpoint, or None if no checkpoint exists. Raises CheckpointError if the checkpoint
        does not fit the model.
        """
        ...

    async def results(self) -> Mapping[str, Any]:
        """Return the part of the job's results that describes the checkpoints."""
        ...
