"""The interface of an engine, which runs a job. It receives the job, a task app and a ledger.

The ledger stores all progress. The engine itself stores nothing. `Ledger.report` writes events, metric points and the
engine's state in one transaction. After a backend is killed, the next backend passes the stored state to `Engine.run`,
so that no event is duplicated or missing. If the engine's weights are older than this state, the engine first calls
`Ledger.supersede` to go back to the position at which the weights were saved.
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
"""Prefixes of the event types that a job reports again after it returns to a checkpoint.

Other events occur only once.
"""

REPEATED = "repeated_rollout"
"""The error code of a rollout whose response repeats the `rollout_id` of another rollout of the job."""

Level = Literal["info", "warning", "error"]
Phase = Literal["train", "eval"]


@dataclass(frozen=True)
class JobDocument:
    """A validated job request.

    Attributes:
        job_id: The job's id.
        task_app_url: The address of the task app.
        config: The RL config, as parsed from TOML.
        model: The model that the request names outside of the config, or "".
        trainer_id: The trainer that the request names, or "".
        trainer: The request's field `trainer`, which may contain `batch_size` and `group_size`.
    """

    job_id: str
    task_app_url: str
    config: Mapping[str, Any]
    model: str = ""
    trainer_id: str = ""
    trainer: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def document(self) -> dict[str, Any]:
        """The config. If it names no model, the request's model is added."""
        document = dict(self.config)
        section = document.get("model")
        if self.model and not models_named(document) and (section is None or isinstance(section, Mapping)):
            document["model"] = {kind_of_model(self.model): self.model, **(section or {})}
        return document

    @cached_property
    def typed_config(self) -> tuple[RlDocument, dict[Place, str]]:
        """The valid values of `document`, and a problem for each invalid value."""
        return read_document(RlDocument, self.document)

    @property
    def tags(self) -> Mapping[str, Any]:
        """The `[tags]` of the config, by which jobs can be found."""
        return self.config.get("tags") or {}


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a job.

    Attributes:
        type: The event's type, such as `rl.train.step`.
        message: A sentence for people.
        level: The severity.
        data: Values that can be encoded as JSON.
    """

    type: str
    message: str
    level: Level = "info"
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One point of a metric.

    step: The iteration, which starts at 1. An evaluation before the first iteration has step 0.
    """

    name: str
    value: float
    step: int
    phase: Phase
    epoch: int


@dataclass(frozen=True, slots=True)
class RolloutOutcome:
    """The result of a rollout: a reward, no reward (None), or a failure (with a boundary or a code).

    `iteration` starts at 1. `place` is the index of the group (train) or of the instance (eval), from 0.
    `seconds` is the time until the response. `scores` contains the defined scores by metric name (see
    `rewards.scores_of`).
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
        """Whether the rollout failed. Its reward is then None and is not part of any mean."""
        return self.status == "failed"


def repeated(rollout: RolloutOutcome, phase: str, iteration: int, place: int, sample: int) -> RolloutOutcome:
    """Return the rollout as failed, because an earlier rollout, at the given index, has the same `rollout_id`."""
    return replace(
        rollout,
        status="failed",
        reward=None,
        scores={},
        code=REPEATED,
        message=f"The task app returned one rollout_id for two rollouts of this job ({phase} {iteration}, place {place}, "
        f"sample {sample} came first). Each rollout must have a unique rollout_id.",
    )


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The result of a job that succeeded. final_reward: The last mean reward, or None if it is undefined."""

    final_reward: float | None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)


class JobReport(TypedDict, total=False):
    """Progress that an engine reports together with events. Fields that are None or absent stay unchanged.

    `points` are new points of metrics. `state` is passed to `Engine.run` when the job is resumed. `metrics` are the
    latest numbers in the job's status. `total` is the number of rollouts that the job will run.
    """

    points: Sequence[CurvePoint]
    state: Mapping[str, Any] | None
    metrics: Mapping[str, float | None] | None
    total: int | None


class Ledger(Protocol):
    """Stores an engine's progress. When a call returns, the data is durable.

    Every method raises StoreError if the store fails, and ValueError for data that cannot be encoded as JSON.
    """

    async def report(self, *events: Event, **progress: Unpack[JobReport]) -> None:
        """Store the events and the progress in one transaction."""
        ...

    async def last_data(self, *types: str, last: int) -> list[Mapping[str, Any]]:
        """Return the data of the `last` latest events of these types, oldest first. Superseded events are ignored."""
        ...

    async def store(self, rollout: RolloutOutcome) -> RolloutOutcome:
        """Store a finished rollout, unless its place already has one. Return the rollout as stored.

        If another rollout of the job has the same `rollout_id`, this rollout is stored as failed (REPEATED).
        """
        ...

    async def stored(self, phase: Phase, iteration: int) -> list[RolloutOutcome]:
        """Return the finished rollouts of a phase of an iteration, ordered by the group's position, then by sample.

        The result includes rollouts of earlier runs, but not superseded rollouts.
        """
        ...

    async def position(self) -> int:
        """Return the number of the job's last event, or 0 before the first event. Pass it to `supersede` later."""
        ...

    async def supersede(self, after: int, *events: Event, **progress: Unpack[JobReport]) -> None:
        """Go back to a position: mark everything after it as superseded, and report the events.

        One transaction does both. Superseded rollouts and points are not counted, and their places are free again.
        Superseded events of the types in PROGRESS stay in the list of events, marked with the number of the first new
        event.

        Args:
            after: A result of `position`, or 0 to supersede everything.
            events: The events to report.
            progress: The state and the metrics at that position.
        """
        ...


class Engine(Protocol):
    """Runs a job.

    Attributes:
        name: The engine's name in every status, and the id of its trainer.
        description: The engine's name and purpose.
        updates_weights: Whether the engine changes a model.
        restarts: Whether the engine can restart a failed or cancelled job. `run` is then called with the last stored
            state.
        most_jobs: The maximum number of concurrent jobs, or None for no limit.
    """

    name: str
    description: str
    updates_weights: bool
    restarts: bool
    most_jobs: int | None

    def problems(self, job: JobDocument) -> Mapping[Place, str]:
        """Return a sentence for each setting that this engine does not support.

        The keys of the result are paths in the config, such as ("training", "lora", "r"), or () for a problem of the
        whole job. A job with problems is rejected.
        """
        ...

    async def missing(self, job: JobDocument, task_app: OpenedTaskApp) -> list[str]:
        """Return a sentence for each requirement of the job that the task app does not meet. Such a job is rejected.

        This method is called when a job is submitted, and again before its first `run`. It raises TaskAppError if the
        task app does not respond, in which case the job is not rejected.
        """
        ...

    async def run(
        self, job: JobDocument, task_app: OpenedTaskApp, ledger: Ledger, state: Mapping[str, Any]
    ) -> JobOutcome:
        """Run the job to its end, starting from `state`, which is empty at first.

        Strings from the task app are `cleaned` before they are stored. When this method is cancelled, it stops within
        seconds and writes nothing more. The caller decides whether the job ends or is resumed later. Raises JobError if
        the job fails. The exception's message becomes the job's `error`.
        """
        ...
