"""The source of the viewer's data: a running service, or a directory or store for `taskapp view`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.errors import ConfigError
from taskapp_kit.records.content import Json
from taskapp_kit.records.events import Started, encode
from taskapp_kit.records.protocols import Annotation, RolloutQuery, RolloutRow, RowOrder, StoredRollout
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.records.score_ranges import ScoreRanges
from taskapp_kit.records.statistics import IntervalMethod, Range
from taskapp_kit.rollout.admission import ANYONE, Caller, RunningRollout
from taskapp_kit.rollout.describe import Description
from taskapp_kit.rollout.response import stored_rollout
from taskapp_kit.rollout.source import RolloutSource

if TYPE_CHECKING:
    from taskapp_kit.rollout.service import Service
    from taskapp_kit.rollout.session import EnvironmentSession
    from taskapp_kit.rollout.sessions import EnvironmentSessions


@dataclass(frozen=True, slots=True)
class Scale:
    """The scores that a person may enter: a number from `low` to `high`, or one of `choices`, from worst to best.

    Attributes:
        name: The name of the criterion or judge.
        environments: The environments whose rollouts are scored, or None for all environments.
    """

    name: str
    description: str
    low: float = 0.0
    high: float = 1.0
    choices: tuple[str, ...] = ()
    judge: bool = False
    environments: tuple[str, ...] | None = None

    def applies_to(self, environment: str) -> bool:
        """Return whether rollouts of this environment are scored on this scale."""
        return self.environments is None or environment in self.environments

    def values(self) -> list[tuple[float, str]]:
        """Return the possible scores with their labels, for buttons. Empty if the scale has too many steps for buttons."""
        words = self.choices
        if words:
            step = (self.high - self.low) / max(1, len(words) - 1)
            return [(self.low + step * index, word) for index, word in enumerate(words)]
        if (self.low, self.high) == (0.0, 1.0):
            return [(value / 4, f"{value / 4:g}") for value in range(5)]
        if self.low.is_integer() and self.high.is_integer() and self.high - self.low <= MAX_WHOLE_STEPS:
            return [(float(value), str(value)) for value in range(int(self.low), int(self.high) + 1)]
        return []


MAX_WHOLE_STEPS = 10
"""An integer scale with at most this many steps is shown as a row of buttons."""


@dataclass(frozen=True, slots=True)
class LiveRow:
    """A rollout that is being played."""

    rollout_id: str
    environment: str
    split: str
    seed: int
    policy: str
    run_id: str
    created_at: float


@dataclass(frozen=True, slots=True)
class JobProgress:
    """A job of a backend.

    Attributes:
        view: The job as the backend's API returns it.
        task_app_url: The address of the task app that stores the job's rollouts.
        iterations: One entry for each phase and iteration. The fields are phase, iteration (from 1), rollouts, failed,
            undefined (the number of rollouts without a reward), reward (the mean of the other rollouts, or None) and
            seconds (the mean).
        points: The (name, step, value) of each point of the metrics.
    """

    view: dict[str, Any]
    task_app_url: str
    iterations: list[dict[str, Any]]
    points: list[tuple[str, int, float]]


@dataclass(frozen=True, slots=True)
class ProtocolClients:
    """The lines that the clients of a protocol need. clients: The title and the lines of each client."""

    summary: str
    clients: Sequence[tuple[str, str]]


ClientLines = Callable[[str, Sequence[str]], Sequence[ProtocolClients]]
"""A function that returns the lines for clients, given a server's address and environments."""


@dataclass(slots=True)
class UiSource:
    """The data that the pages show. Subclasses override the methods that they support.

    Attributes:
        place: The source's name, for display.
        stored: The stored rollouts, if every caller may see all of them.
        scales: The scales on which a person may score rollouts.
        annotates: Whether people's scores can be stored.
        plays: Whether the source plays rollouts.
        replay_arguments: The arguments of `taskapp replay` before the rollout's id.
        report: The path of the report in an evaluation's directory.
        runs_jobs: Whether the source is a backend, which has jobs instead of rollouts.
        spec: The running app, whose environments a person can play.
        sessions: The sessions of the running app.
        interval: The method for confidence intervals of mean rewards.
        reward_ranges: The range of the reward by environment, if the app's declarations are available.
    """

    place: str = ""
    stored: RolloutSource | None = None
    scales: Sequence[Scale] = ()
    annotates: bool = False
    plays: bool = False
    replay_arguments: tuple[str, ...] = ()
    report: Path | None = None
    runs_jobs: bool = False
    spec: AppSpec | None = None
    sessions: EnvironmentSessions | None = None
    interval: IntervalMethod = "bootstrap"
    reward_ranges: Mapping[str, Range] = field(default_factory=dict)

    def rollouts(self, caller: Caller) -> RolloutSource | None:
        """Return the stored rollouts that the caller may see."""
        return self.stored

    async def rows(self, wanted: RolloutQuery, order: RowOrder, caller: Caller) -> list[RolloutRow]:
        """Return the first `wanted.limit` matching rollouts that the caller may see.

        Raises StoreError if the store fails, and Unavailable if it cannot list rollouts."""
        rollouts = self.rollouts(caller)
        return [] if rollouts is None else [row async for row in rollouts.rows(wanted, order, limit=wanted.limit)]

    async def load(self, rollout_id: str, caller: Caller) -> StoredRollout | None:
        """Return a rollout, or None if it does not exist or is hidden from the caller. Raises StoreError if the store fails."""
        rollouts = self.rollouts(caller)
        try:
            return None if rollouts is None else await rollouts.load(rollout_id)
        except ConfigError:
            return None

    async def annotations(self, caller: Caller, rollout_id: str | None = None) -> list[Annotation]:
        """Return people's scores of one rollout, or of all rollouts that the caller may see."""
        rollouts = self.rollouts(caller)
        return [] if rollouts is None else await rollouts.annotations(rollout_id)

    def live(self, caller: Caller) -> list[LiveRow]:
        """Return the running rollouts that the caller may see, oldest first."""
        return []

    async def live_rollout(self, rollout_id: str, caller: Caller) -> StoredRollout | None:
        """Return a running rollout as it would be stored now, or None if it is not running."""
        return None

    def clients(self, url: str, environment: str) -> Sequence[ProtocolClients]:
        """Return the lines for clients of each protocol that the server serves, for one environment."""
        return ()

    async def played(self, session: EnvironmentSession) -> StoredRollout | None:
        """Return the latest episode of a session as it would be stored now, or None before the first episode."""
        return None

    async def jobs(self, caller: Caller, limit: int) -> list[dict[str, Any]]:
        """Return the caller's newest jobs as the backend's API returns them. Raises StoreError if the store fails."""
        return []

    async def job(self, job_id: str, caller: Caller) -> JobProgress | None:
        """Return a job, or None if it does not exist or is hidden from the caller. Raises StoreError if the store fails."""
        return None

    async def job_rollouts(self, job_id: str, phase: str, iteration: int) -> list[dict[str, Any]]:
        """Return a job's rollouts of one iteration, sorted by position and sample. Raises StoreError if the store fails."""
        return []


class ServiceSource(UiSource):
    """The data of a running service.

    client_lines: A function that returns the lines for clients of the server's protocols.
    """

    def __init__(self, service: Service, client_lines: ClientLines = lambda url, environments: ()) -> None:
        super().__init__(
            place=service.spec.name,
            scales=scales_of(service.spec),
            annotates=service.stored.of(ANYONE).annotates,
            plays=True,
            spec=service.spec,
            sessions=service.sessions,
            reward_ranges=reward_ranges(service.spec),
        )
        self._service = service
        self._client_lines = client_lines

    def rollouts(self, caller: Caller) -> RolloutSource:
        """See UiSource."""
        return self._service.stored.of(caller)

    def live(self, caller: Caller) -> list[LiveRow]:
        """See UiSource."""
        return [_live_row(one) for one in self._service.admission.running() if caller.may_see(one.caller.key_label)]

    async def live_rollout(self, rollout_id: str, caller: Caller) -> StoredRollout | None:
        """See UiSource."""
        for one in self._service.admission.running():
            if one.rollout_id == rollout_id and caller.may_see(one.caller.key_label):
                return await asyncio.to_thread(self._as_stored, one)
        return None

    def clients(self, url: str, environment: str) -> Sequence[ProtocolClients]:
        """See UiSource."""
        return self._client_lines(url, [environment])

    async def played(self, session: EnvironmentSession) -> StoredRollout | None:
        """See UiSource."""
        rollout, end, failure = session.rollout, session.end, session.failure
        if rollout is None:
            return None
        if end is not None:
            return await asyncio.to_thread(self._record, rollout, end)
        stored = await asyncio.to_thread(self._as_stored, rollout)
        if failure is None:
            return stored
        members = ("boundary", "code", "message", "hint", "error_id")
        told: dict[str, Json] = {name: getattr(failure, name) for name in members}
        return replace(stored, status="failed", stop_reason="failed", failure=told)

    def _as_stored(self, rollout: RunningRollout) -> StoredRollout:
        plan, events = rollout.plan, rollout.events()
        if not events:
            environment = plan.environment
            events = [Started(environment.name, environment.version, plan.split, plan.seed, plan.config, plan.policy)]
        so_far = Rollout.of_events(
            plan.request,
            plan.policy,
            events,
            status="running",
            rollout_id=rollout.rollout_id,
            created_at=rollout.created_at,
            timing={"total": max(0.0, self._service.clock.now() - rollout.created_at)},
        )
        return replace(self._record(rollout, so_far), scorecard=None, timing={})

    def _record(self, rollout: RunningRollout, result: Rollout) -> StoredRollout:
        if images := result.shown_pictures():
            self._service.stored.show_images(images)
        events = encode(result.events)
        return stored_rollout(self._service.spec, rollout.plan, result, events, key_label=rollout.caller.key_label)


def _live_row(one: RunningRollout) -> LiveRow:
    plan = one.plan
    return LiveRow(
        one.rollout_id, plan.environment.name, plan.split, plan.seed, plan.policy, plan.request.run_id, one.created_at
    )


def reward_ranges(spec: AppSpec) -> dict[str, Range]:
    """Return the range of the reward by environment."""
    described = Description(spec, max_time_seconds=1.0, max_concurrent=1, max_body_bytes=1)
    return {
        name: ScoreRanges.of_task_info(described.taskset(environment), spec.aggregation).reward
        for name, environment in spec.environments.items()
    }


def scales_of(spec: AppSpec) -> list[Scale]:
    """Return the scales on which a person may score: the judges' scales, then the scales of the outcome criteria."""
    judges = [
        Scale(judge.name, judge.description, *judge.scale, judge.choices, True, judge.environments)
        for judge in spec.judges
        if not judge.group
    ]
    criteria = [
        Scale(item.name, item.description, *item.scale, environments=item.environments)
        for item in spec.criteria
        if item.of == "outcome" and item.weight > 0
    ]
    return judges + criteria
