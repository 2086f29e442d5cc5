"""A training job on a real gateway, and what stands around it: a ledger in memory and a learner that only counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from taskapp_kit.errors import TrainingError
from taskapp_kit.jobs.server.engine import PROGRESS, CurvePoint, Event, JobOutcome, RolloutOutcome, repeated
from taskapp_kit.jobs.server.rollout_plan import JobPlan
from taskapp_kit.jobs.server.task_app_access import OpenedTaskApp, TaskAppAddresses
from taskapp_kit.train.driver.driver_settings import DriverSettings
from taskapp_kit.train.driver.interfaces import CheckpointSink, Learner, SavedJob
from taskapp_kit.train.driver.job_driver import JobDriver
from taskapp_kit.train.driver.stored_units import StoredUnits
from taskapp_kit.train.gateway.gateway_server import Gateway
from taskapp_kit.train.rendering.renderer import Renderer
from taskapp_kit.train.turns import Sampler, TrainingRow, UpdateMetrics
from tests.train.gateway.peers import RENDERER, SETTINGS

JOB = "job-1"
PLAN = JobPlan(
    iterations=2,
    per_epoch=2,
    groups=2,
    samples=3,
    at_once=4,
    env_name=None,
    env_config={},
    policy_name=None,
    policy_config={},
    ops=["agent", "env"] * 2,
    seeds=None,
)
DRIVER = DriverSettings(SETTINGS, attempts=1)


@dataclass
class MemoryLedger:
    """Stores all that is reported, and one rollout for each place."""

    events: list[Event] = field(default_factory=list)
    points: list[CurvePoint] = field(default_factory=list)
    rollouts: list[RolloutOutcome] = field(default_factory=list)
    state: Mapping[str, Any] = field(default_factory=dict)
    states: list[Mapping[str, Any]] = field(default_factory=list)
    total: int | None = None
    superseded: list[int] = field(default_factory=list)

    async def report(
        self,
        *events: Event,
        points: Sequence[CurvePoint] = (),
        state: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float | None] | None = None,
        total: int | None = None,
    ) -> None:
        self.events += events
        self.points += points
        if state is not None:
            self.state = state
            self.states.append(state)
        self.total = total or self.total

    async def last_data(self, *types: str, last: int) -> list[Mapping[str, Any]]:
        return [event.data for event in self.events if event.type in types][-last:]

    async def store(self, rollout: RolloutOutcome) -> RolloutOutcome:
        for one in await self.stored(rollout.phase, rollout.iteration):
            if (one.place, one.sample) == (rollout.place, rollout.sample):
                return one
        first = next((one for one in self.rollouts if one.rollout_id == rollout.rollout_id != ""), None)
        if first is not None and not rollout.failed:
            rollout = repeated(rollout, first.phase, first.iteration, first.place, first.sample)
        self.rollouts.append(rollout)
        return rollout

    async def position(self) -> int:
        return len(self.events)

    async def supersede(self, after: int, *events: Event, **progress: Any) -> None:
        """Removes what is superseded; the backend's store only marks it."""
        self.superseded.append(after)
        units = [each for each in self.events[:after] if each.type in ("rl.train.step", "rl.eval.summary")]
        ended = {("eval" if "eval" in each.type else "train", each.data["step"]) for each in units}
        self.points = [point for point in self.points if (point.phase, point.step) in ended]
        self.rollouts = [one for one in self.rollouts if (one.phase, one.iteration) in ended]
        kept = [each for each in self.events[after:] if not each.type.startswith(PROGRESS)]
        self.events = self.events[:after] + kept
        await self.report(*events, **progress)

    async def stored(self, phase: str, iteration: int) -> list[RolloutOutcome]:
        return [one for one in self.rollouts if (one.phase, one.iteration) == (phase, iteration)]

    def curve(self, name: str) -> list[float]:
        return [point.value for point in self.points if point.name == name]

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.type == kind]


@dataclass
class CountingLearner:
    """Learns nothing: gives the sampler the next version. batches: the rows of each update."""

    sampler: Any
    batches: list[list[TrainingRow]] = field(default_factory=list)

    async def learn(self, rows: Sequence[TrainingRow]) -> UpdateMetrics:
        self.batches.append(list(rows))
        self.sampler.version += 1
        return UpdateMetrics(
            version=self.sampler.version,
            learning_rate=1e-3,
            loss=0.5,
            steps=1,
            episodes=len({row.rollout for row in rows}),
            rows=len(rows),
            idle_rows=0,
            tokens=sum(row.trained for row in rows),
            gradient_norm=1.5,
            entropy=2.5,
            clip_share=0.25,
            kl=None,
            mismatch_mean=0.0,
            mismatch_p99=0.0,
            mismatch_largest=0.0,
            effective_share=1.0,
            sampler_agrees=True,
            age_mean=0.0,
            age_largest=0,
            seconds=0.1,
        )


@dataclass
class BreakingLearner(CountingLearner):
    """Fails once: at the update after which the sampler would have the version `breaks`."""

    breaks: int = 1

    async def learn(self, rows: Sequence[TrainingRow]) -> UpdateMetrics:
        if self.sampler.version + 1 == self.breaks:
            self.breaks = 0
            raise TrainingError("The gradient is not finite.")
        return await super().learn(rows)


@dataclass
class MemoryCheckpoints:
    """Stores states, and the policy's version as its weights. scores: of each `save`."""

    sampler: Any
    saved: list[tuple[SavedJob, int]] = field(default_factory=list)
    scores: list[float | None] = field(default_factory=list)

    async def save(self, saved: SavedJob, score: float | None) -> str:
        name = f"checkpoint-{saved.at.iteration}"
        self.saved.append((replace(saved, checkpoint=name), self.sampler.version))
        self.scores.append(score)
        return name

    async def restore(self) -> SavedJob | None:
        if not self.saved:
            return None
        saved, self.sampler.version = self.saved[-1]
        return saved

    async def results(self) -> Mapping[str, Any]:
        return {"model": self.saved[-1][0].checkpoint if self.saved else None}


@dataclass
class Driven:
    """A job that has ended. error: what it raised. open_after: attempts at the gateway that were open afterwards."""

    ledger: MemoryLedger
    learner: Any
    outcome: JobOutcome | None = None
    error: Exception | None = None
    open_after: int = -1


async def drive(
    url: str,
    sampler: Sampler,
    learner: Learner,
    *,
    plan: JobPlan = PLAN,
    settings: DriverSettings = DRIVER,
    key: str | None = None,
    state: Mapping[str, Any] | None = None,
    ledger: MemoryLedger | None = None,
    checkpoints: CheckpointSink | None = None,
    stored: StoredUnits | None = None,
    renderer: Renderer = RENDERER,
    with_gateway: Callable[[Gateway], None] = lambda gateway: None,
) -> Driven:
    """Run a job to its end. with_gateway: called when the gateway serves."""
    driven = Driven(ledger or MemoryLedger(), learner)
    shown = () if key is None else (key,)
    with Gateway(sampler, renderer, max_open_attempts=plan.at_once) as gateway:
        with_gateway(gateway)
        async with OpenedTaskApp(url, key, TaskAppAddresses(local=True), shown, 0) as task_app:
            driver = JobDriver(JOB, plan, task_app, gateway, learner, driven.ledger, settings, checkpoints, stored)
            try:
                driven.outcome = await driver.run(state or {})
            except Exception as error:
                driven.error = error
        driven.open_after = gateway.open_attempts
    return driven


def evaluated(plan: JobPlan = PLAN, **changes: Any) -> JobPlan:
    """The plan with evaluations of two instances after every iteration."""
    return replace(plan, **{"eval_every": 1, "eval_instances": 2, **changes})
