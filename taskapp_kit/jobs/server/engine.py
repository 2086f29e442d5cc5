"""The interface of an engine, which gets a job, a task app and a ledger, and runs the job to its end.

The ledger contains all progress, and the engine none. `Ledger.report` writes events, metric points and the engine's state in
one transaction. A backend that was killed passes that state to the next run, which continues from there, so that no event is
duplicated or missing. An engine with older weights first goes back to their moment with `Ledger.supersede`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, Unpack

from taskapp_kit.jobs.client.config.cross_section_checks import kind_of_model, models_named
from taskapp_kit.jobs.client.config.review import read_document
from taskapp_kit.jobs.client.config.schema import RlDocument
from taskapp_kit.jobs.client.config.values import Place

if TYPE_CHECKING:
    from taskapp_kit.jobs.server.task_app_access import OpenedTaskApp

PROGRESS = ("rl.train.", "rl.eval.")
"""How the types of events begin that a job reports again when it goes back to a checkpoint. Others happened once."""

REPEATED = "repeated_rollout"
"""The code of a rollout whose response has the `rollout_id` of another rollout of the job."""

Level = Literal["info", "warning", "error"]
Phase = Literal["train", "eval"]


@dataclass(frozen=True)
class JobDocument:
    """A validated job request.

    config: the RL config, as parsed from TOML. model: the name that the job gives its model, "" for none. trainer:
    settings of the second form of a job (`batch_size`, `group_size`).
    """

    job_id: str
    task_app_url: str
    config: Mapping[str, Any]
    model: str = ""
    trainer_id: str = ""
    trainer: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def document(self) -> dict[str, Any]:
        """The config, with the job's model where it names none."""
        document = dict(self.config)
        section = document.get("model")
        if self.model and not models_named(document) and (section is None or isinstance(section, Mapping)):
            document["model"] = {kind_of_model(self.model): self.model, **(section or {})}
        return document

    @cached_property
    def typed_config(self) -> tuple[RlDocument, dict[Place, str]]:
        """`document` as its type, without the values that do not fit it, and a problem for each of those."""
        return read_document(RlDocument, self.document)

    @property
    def tags(self) -> Mapping[str, Any]:
        """The `[tags]` of its config, by which its owner finds the job again."""
        return self.config.get("tags") or {}


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a job. type: such as `rl.train.step`. message: one sentence for people. data: JSON."""

    type: str
    message: str
    level: Level = "info"
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One point of a metric. step: the iteration, from 1; 0 for an evaluation before the first."""

    name: str
    value: float
    step: int
    phase: Phase
    epoch: int


@dataclass(frozen=True, slots=True)
class RolloutOutcome:
    """The result of a rollout: scored, unscored (reward None), or failed (with a boundary or a code).

    iteration: from 1. place: index of its group (train) or instance (eval), from 0. seconds: duration until its response.
    scores: its defined scores by the names of their points (see `rewards.scores_of`).
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
    scores: Mapping[str, float] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether it has no result: its reward is None and counts in no mean."""
        return self.status == "failed"


def repeated(rollout: RolloutOutcome, phase: str, iteration: int, place: int, sample: int) -> RolloutOutcome:
    """Return the rollout as failed, because the rollout at this index had the same `rollout_id`."""
    return replace(
        rollout,
        status="failed",
        reward=None,
        scores={},
        code=REPEATED,
        message=f"The task app answered two rollouts of this job with one rollout_id ({phase} {iteration}, place {place}, "
        f"sample {sample} came first); expected one of its own for each.",
    )


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The end of a job that succeeded. final_reward: None when it is undefined."""

    final_reward: float | None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)


class JobReport(TypedDict, total=False):
    """What an engine reports with its events.

    points: of metrics. state: passed to `Engine.run` when the job is resumed. metrics: latest numbers of the job's status.
    total: number of rollouts that the job will run. A member that is None is not changed.
    """

    points: Sequence[CurvePoint]
    state: Mapping[str, Any] | None
    metrics: Mapping[str, float | None] | None
    total: int | None


class Ledger(Protocol):
    """Stores an engine's progress, durably when a call returns. Raises StoreError; ValueError for data that is not JSON."""

    async def report(self, *events: Event, **progress: Unpack[JobReport]) -> None:
        """Store all of it in one transaction."""
        ...

    async def last_data(self, *types: str, last: int) -> list[Mapping[str, Any]]:
        """Return the data of the last events of these types, in order, without superseded ones."""
        ...

    async def store(self, rollout: RolloutOutcome) -> RolloutOutcome:
        """Store a finished rollout unless one is stored at the same place already. Returns it as it counts.

        It counts as failed (REPEATED) where another rollout of the job has the same `rollout_id`.
        """
        ...

    async def stored(self, phase: Phase, iteration: int) -> list[RolloutOutcome]:
        """Return the finished rollouts of a phase and iteration, by place and sample.

        This includes rollouts of earlier runs, but not superseded rollouts.
        """
        ...

    async def position(self) -> int:
        """Return the number of the job's last event for a later `supersede`, or 0 if there are no events."""
        ...

    async def supersede(self, after: int, *events: Event, **progress: Unpack[JobReport]) -> None:
        """Go back to a position: mark rollouts, points and progress after it as superseded, and report the events.

        All in one transaction. Superseded rollouts and points are not counted, and their places are free. Superseded events of
        the types in PROGRESS stay in the list, marked with the number of the first event. `after` is a value of `position`,
        or 0 for everything. `progress` contains state and metrics of that moment.
        """
        ...


class Engine(Protocol):
    """Runs a job.

    Attributes:
        name: Part of every status, and the id of its trainer.
        description: Its name and purpose.
        updates_weights: Whether it changes a model.
        restarts: Whether it can restart a failed or cancelled job. `run` is then called with the last stored state.
        most_jobs: The most concurrent jobs, or None for no limit.
    """

    name: str
    description: str
    updates_weights: bool
    restarts: bool
    most_jobs: int | None

    def problems(self, job: JobDocument) -> Mapping[Place, str]:
        """Return what this engine does not support, by place in the config, such as ("training", "lora", "r").

        A job with problems is rejected. Problems of the job as a whole have the place ().
        """
        ...

    async def missing(self, job: JobDocument, task_app: OpenedTaskApp) -> list[str]:
        """Return what the job needs but the task app does not have, one sentence each. Such a job is rejected.

        Called when a job is submitted, and again before its first `run`. Raises TaskAppError if the task app does not answer,
        which does not cause a rejection.
        """
        ...

    async def run(
        self, job: JobDocument, task_app: OpenedTaskApp, ledger: Ledger, state: Mapping[str, Any]
    ) -> JobOutcome:
        """Run the job from `state` (empty at first) to its end. Strings from the task app are `cleaned` before they are stored.

        When cancelled, it stops within seconds and writes nothing more. The caller decides whether the job ends or is resumed
        at the next start. Raises JobError with a sentence for the job's `error`.
        """
        ...
