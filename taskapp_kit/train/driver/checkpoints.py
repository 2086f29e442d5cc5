"""The interfaces through which a job's policy learns and is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from taskapp_kit.train.checkpoints.facts import JobPosition
from taskapp_kit.train.turns import TrainingRow, UpdateMetrics


class Learner(Protocol):
    """Updates the policy whose rollouts are played."""

    async def learn(self, rows: Sequence[TrainingRow]) -> UpdateMetrics:
        """Make one update; when it returns, the sampler has the new weights. Raises TrainingError, BadArgument."""
        ...


@dataclass(frozen=True, slots=True)
class SavedJob:
    """A job at the moment of a checkpoint.

    position: of the ledger (`Ledger.position`). state: the one that was reported last. checkpoint: the name of the model
    that it is, "" while it is being saved.
    """

    position: int
    state: Mapping[str, Any]
    at: JobPosition
    checkpoint: str = ""


class CheckpointSink(Protocol):
    """Stores the policy that the driver trains, and gives it back to a later process."""

    async def save(self, saved: SavedJob, score: float | None) -> str:
        """Store the policy as it is, durably when the call returns; return its name. score: of its evaluation.

        Raises CheckpointError; earlier checkpoints are unchanged then.
        """
        ...

    async def restore(self) -> SavedJob | None:
        """Give learner and sampler the weights of the last whole checkpoint, and return it. None without one.

        Raises CheckpointError if it does not fit the model.
        """
        ...

    async def results(self) -> Mapping[str, Any]:
        """Return what the job's results say of its checkpoints."""
        ...
