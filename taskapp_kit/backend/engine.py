"""What an engine is: it gets a job, a task app and a ledger, and plays until the job is done.

An engine keeps nothing in itself that matters. All that it has done stands in the ledger, and `Ledger.tell` writes events,
metric points and the engine's own state in one transaction: a backend that was killed gives the same state to the next
run, which goes on from there, and no event is told twice or missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from taskapp_kit.backend.opened_task_app import OpenedTaskApp

REPEATED = "repeated_rollout"
"""The code of a rollout whose answer has the `rollout_id` of another rollout of the job."""

Level = Literal["info", "warning", "error"]
Phase = Literal["train", "eval"]


@dataclass(frozen=True, slots=True)
class JobDocument:
    """What was asked for, read and checked.

    config: the RL config, as its TOML had it. model: the name that the job gives its model, "" for none. trainer:
    settings of the second form of a job (`batch_size`, `group_size`).
    """

    job_id: str
    task_app_url: str
    config: Mapping[str, Any]
    model: str = ""
    trainer_id: str = ""
    trainer: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """Something to tell. type: `rl.train.step` and the like; message: one sentence for a person; data: JSON."""

    type: str
    message: str
    level: Level = "info"
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One number of a curve. step: the iteration, from 1."""

    name: str
    value: float
    step: int
    phase: Phase
    epoch: int


@dataclass(frozen=True, slots=True)
class RolloutOutcome:
    """A rollout that is over. Exactly one of its kinds: scored, unscored (reward None), failed (boundary or code says how).

    iteration: from 1. place: the number of its group (train) or instance (eval), from 0. seconds: until it was answered.
    """

    phase: Phase
    iteration: int
    place: int
    sample: int
    seed: int
    status: str
    reward: float | None = None
    rollout_id: str = ""
    boundary: str | None = None
    code: str = ""
    message: str = ""
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether it has no result at all; its reward is None then, and in no mean."""
        return self.status == "failed"


def repeated(rollout: RolloutOutcome, phase: str, iteration: int, place: int, sample: int) -> RolloutOutcome:
    """The rollout as failed: the one at this place of the job was answered with the same `rollout_id` before."""
    return replace(
        rollout,
        status="failed",
        reward=None,
        code=REPEATED,
        message=f"The task app answered two rollouts of this job with one rollout_id ({phase} {iteration}, place {place}, "
        f"sample {sample} came first); expected one of its own for each.",
    )


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How a job that succeeded ended. final_reward: None when it is undefined."""

    final_reward: float | None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)


class Ledger(Protocol):
    """Where an engine reports. Each call is on disk when it returns. Raises StoreError; what is no JSON, ValueError."""

    async def tell(
        self,
        *events: Event,
        points: Sequence[CurvePoint] = (),
        state: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float | None] | None = None,
        total: int | None = None,
    ) -> None:
        """All of it in one transaction.

        state: what `Engine.run` is given when it is called again; metrics: the latest numbers of the job's status;
        total: rollouts that the job will have played.
        """
        ...

    async def told(self, *types: str, last: int) -> list[Mapping[str, Any]]:
        """The data of the last events of these types, in order."""
        ...

    async def keep(self, rollout: RolloutOutcome) -> RolloutOutcome:
        """Stores a rollout that is over; a second one for the same place is dropped. Returns it as it counts.

        It failed (REPEATED) where another rollout of the job was answered with the same `rollout_id`.
        """
        ...

    async def played(self, phase: Phase, iteration: int) -> list[RolloutOutcome]:
        """The rollouts of this phase and iteration that are over, also those of an earlier run, by place and sample."""
        ...


class Engine(Protocol):
    """Plays a job.

    name: stands in every status. updates_weights: whether a model is changed at all.
    """

    name: str
    updates_weights: bool

    def problems(self, job: JobDocument) -> list[str]:
        """What this engine cannot do of the job, one sentence each; a job with problems is refused."""
        ...

    async def missing(self, job: JobDocument, task_app: OpenedTaskApp) -> list[str]:
        """What the job asks for and the task app does not have, one sentence each; a job that lacks something is refused.

        Asked when a job is submitted, and once more before its first `run`. Raises TaskAppError when the task app cannot
        be asked, which is no reason to refuse.
        """
        ...

    async def run(
        self, job: JobDocument, task_app: OpenedTaskApp, ledger: Ledger, state: Mapping[str, Any]
    ) -> JobOutcome:
        """Plays the job from `state` (empty at first) to its end. What the task app says is kept `task_app.cleaned` only.

        Cancelled, it lets go within seconds and writes nothing more: whether the job is over then, or goes on when the
        backend starts again, is not its business. Raises JobError with a sentence for the job's `error`.
        """
        ...
