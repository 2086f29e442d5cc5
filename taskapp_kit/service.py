"""The hall: one rollout from request to kept result. Composes the rooms; knows no HTTP.

request -> planning (environment, seed, config, policy) -> playing (in a thread or a worker: play, fold, score) -> keeping
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from taskapp_kit.contract.events import Answered, Called, EncodedEvents, Event, Failed, encode, from_json
from taskapp_kit.contract.ports import Clock, LocalPolicy, Store, StoredRollout, SystemClock, View
from taskapp_kit.contract.response import with_timing
from taskapp_kit.contract.rollout import Rollout, Story
from taskapp_kit.contract.scorecard import RolloutSummary
from taskapp_kit.contract.trajectory import Answer
from taskapp_kit.contract.wire import RolloutRequest
from taskapp_kit.declare.instances import Instance
from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.declare.taskapp import Exposure, TaskApp
from taskapp_kit.errors import (
    Failure,
    FieldProblem,
    RequestError,
    RolloutFailed,
    Saturated,
    StoreError,
    Unavailable,
)
from taskapp_kit.foreman import Foreman, Lost, Told
from taskapp_kit.keeping import PictureMemory, stored_rollout
from taskapp_kit.outcome import Outcome
from taskapp_kit.planning import Nobody, Planned, Planner
from taskapp_kit.playing import Played, given_up, play
from taskapp_kit.run.episode import Episode
from taskapp_kit.run.lanes import LaneHung, Lanes, NoLane
from taskapp_kit.run.plan import Control
from taskapp_kit.run.stage import prepare_to_serve
from taskapp_kit.score.scoring import ScoringFailed, aggregates
from taskapp_kit.version import __version__, git_commit

log = logging.getLogger("taskapp_kit.service")

HUNG_LIMIT = 8
"""So many stuck threads and the server asks to be replaced: `/health` says `draining`."""


@dataclass(slots=True)
class _Course:
    """A rollout on its way: what is known of it before it is played. began: on the service's monotonic clock."""

    rollout_id: str
    planned: Planned
    created_at: float
    began: float
    key_label: str | None


@dataclass(slots=True)
class _Finished:
    """What comes back from where it was played: the rollout, and what is made of it there for the store.

    pictures: PNG bytes by hash; the row holds them when there is a store. body: the answer, when it was written there.
    """

    outcome: Outcome
    story: Story
    timing: dict[str, float]
    row: StoredRollout | None
    pictures: dict[str, bytes]
    cause: BaseException | None = None
    body: bytes | None = None


class Service:
    """Plays and scores rollouts of one app. Make it and use it on one event loop; call `close` at the end.

    store: where rollouts are kept, None keeps nothing. max_concurrent: rollouts under way at once; one more is refused
    (Saturated). max_time_seconds: the server's own deadline for a rollout. threads: so many rollouts play at once in
    this process. workers: processes that play rollouts in place of those threads, 0 for none. An environment with
    isolation="process" is always played in a process that does nothing else meanwhile.
    """

    def __init__(
        self,
        app: TaskApp,
        *,
        store: Store | None = None,
        clock: Clock | None = None,
        max_concurrent: int = 1024,
        max_time_seconds: float = 3600.0,
        exposure: Exposure = "public",
        threads: int = 64,
        workers: int = 0,
    ) -> None:
        self.app = app
        self.spec: AppSpec = app.freeze()
        _judges_can_be_asked(self.spec)
        self.store = store
        self.clock: Clock = clock or SystemClock()
        self.max_concurrent = max_concurrent
        self.max_time_seconds = max_time_seconds
        self.exposure = exposure
        self.planner = Planner(self.spec, app.file.parent)
        self.lanes = Lanes(threads)
        self.workers = workers
        isolated = any(environment.isolation == "process" for environment in self.spec.environments.values())
        self.foreman = Foreman(app, self.spec, workers=workers) if workers or isolated else None
        self.in_flight = 0
        self._pictures = PictureMemory()
        self._versions: dict[str, str | None] = {
            "kit": __version__,
            "app": self.spec.version,
            "git": git_commit(app.file),
        }
        self.warnings: tuple[str, ...] = (
            *self.spec.warnings,
            *_unasked_judges(self.spec),
            *_unplayed_loop(self.spec),
        )
        for warning in self.warnings:
            log.warning("%s", warning)

    def prepare(self) -> None:
        """Runs `setup_worker` of each environment that this process plays; may take seconds.

        Raises Unavailable: what is missing, or what broke.
        """
        for spec in self.spec.environments.values():
            if self.workers or spec.isolation == "process":
                continue  # a worker process prepares it
            prepare_to_serve(spec)

    async def start(self) -> None:
        """Starts the worker processes and waits until they are ready; without this the first rollout does.

        Those for isolation="process" alone start when they are needed. Raises Unavailable.
        """
        if self.foreman is not None and self.workers:
            await self.foreman.start()

    async def rollout(
        self,
        request: RolloutRequest,
        *,
        key_label: str | None = None,
        policy: LocalPolicy | None = None,
        tell: Callable[[Event], None] | None = None,
        written: bool = False,
    ) -> Rollout:
        """Plays, scores and keeps one rollout.

        policy: acts in place of the one that the request names (a person at a terminal), always in this process. tell:
        is given each event as it happens, in the environment's thread, or on the event loop when a worker process plays
        (`ended` then holds no end state); it must not raise. written: `Rollout.body` is wanted; a worker fills it.

        Raises RequestError (the request is wrong), Unavailable (it needs a part that is not here), Saturated,
        RolloutFailed (something broke; what was played is kept), StoreError (it could not be kept).
        """
        if self.in_flight >= self.max_concurrent:
            raise Saturated(f"{self.in_flight} rollouts are under way, as many as this server takes at once.")
        self.in_flight += 1
        try:
            return await self._rollout(request, key_label, policy, tell, written)
        finally:
            self.in_flight -= 1

    async def _rollout(
        self,
        request: RolloutRequest,
        key_label: str | None,
        own: LocalPolicy | None,
        tell: Callable[[Event], None] | None,
        written: bool,
    ) -> Rollout:
        began, created_at = self.clock.monotonic(), self.clock.now()
        answers = None if own is not None else await self._replayed(request)
        planned = self.planner.plan(request, own=own, answers=answers)
        course = _Course(uuid.uuid4().hex, planned, created_at, began, key_label)
        seconds = min(request.safety.max_time_s, self.max_time_seconds)
        isolated = planned.plan.environment.isolation == "process"
        if own is None and self.foreman is not None and (self.workers or isolated):
            finished = await self._in_a_worker(self.foreman, course, answers, seconds, tell, written)
        else:
            finished = await self._in_a_thread(course, seconds, tell)
        if self.store is not None and finished.row is not None:
            await self.store.save(finished.row)
        else:
            self._pictures.keep(finished.pictures)
        outcome = finished.outcome
        if outcome.failure is not None:
            raise RolloutFailed(outcome.failure, rollout_id=course.rollout_id) from finished.cause
        return outcome.rollout(
            planned,
            finished.story,
            rollout_id=course.rollout_id,
            created_at=created_at,
            versions=self._versions,
            timing=finished.timing,
            body=finished.body,
        )

    async def _in_a_thread(
        self, course: _Course, seconds: float, tell: Callable[[Event], None] | None
    ) -> _Finished:  # fmt: skip
        control = Control()
        events: list[Event] = []

        def stop(reason: Literal["timeout", "cancelled"]) -> None:
            control.stop = control.stop or reason

        try:
            return await self.lanes.run(
                lambda: self._finish(course, play(self.spec, course.planned, self.clock, control, events, tell)),
                seconds=seconds,
                stop=lambda: stop("timeout"),
            )
        except LaneHung as hung:
            failure = _hung(seconds, began=not isinstance(hung, NoLane))
            return self._finish(course, given_up(course.planned, list(events), failure))
        except asyncio.CancelledError:
            stop("cancelled")
            if events:
                await self._keep_cancelled(course, list(events))
            raise

    async def _in_a_worker(
        self,
        foreman: Foreman,
        course: _Course,
        answers: Sequence[Answer] | None,
        seconds: float,
        tell: Callable[[Event], None] | None,
        written: bool,
    ) -> _Finished:
        told = Told(tell)
        try:
            outcome, body = await foreman.play(
                course.planned,
                told,
                answers=answers,
                rollout_id=course.rollout_id,
                created_at=course.created_at,
                versions=self._versions,
                seconds=seconds,
                written=written,
                live=tell is not None,
            )
        except Lost as lost:
            return self._finish(course, given_up(course.planned, told.events(), lost.failure))
        except asyncio.CancelledError:
            await self._keep_cancelled(course, told.events())
            raise
        timing = self._timing(course, outcome)
        events = told.encoded()
        story = Story.encoded(events, told.pictures, outcome.final_state)
        row = None if self.store is None else self._row(course, outcome, events, told.pictures, timing)
        whole = None if body is None else with_timing(body, timing)
        return _Finished(outcome, story, timing, row, told.pictures, body=whole)

    def _finish(self, course: _Course, played: Played) -> _Finished:
        """What is made of a rollout that was played or given up in this process."""
        outcome = Outcome.of(played)
        timing = self._timing(course, outcome)
        pictures = played.pictures()
        row = None if self.store is None else self._row(course, outcome, encode(played.events), pictures, timing)
        return _Finished(outcome, Story(played.events, played.trajectory), timing, row, pictures, played.cause)

    def _row(
        self,
        course: _Course,
        outcome: Outcome,
        events: EncodedEvents,
        pictures: dict[str, bytes],
        timing: dict[str, float],
    ) -> StoredRollout:
        return stored_rollout(
            self.spec,
            course.planned,
            outcome,
            events,
            rollout_id=course.rollout_id,
            created_at=course.created_at,
            timing=timing,
            pictures=pictures,
            key_label=course.key_label,
        )

    def _timing(self, course: _Course, outcome: Outcome) -> dict[str, float]:
        """Seconds in environment, policy and scoring; what is left of the total is the framework's, waiting included."""
        total = self.clock.monotonic() - course.began
        seconds = outcome.seconds
        return {**seconds, "framework": max(0.0, total - sum(seconds.values())), "total": total}

    async def _keep_cancelled(self, course: _Course, events: list[Event]) -> None:
        """The client is gone: what was told until now is kept as cancelled."""
        if self.store is None:
            return
        failure = Failure("cancelled", "cancelled", "the client went away before the rollout ended")
        row = self._finish(course, given_up(course.planned, events, failure)).row
        assert row is not None, "there is a store"
        try:
            await asyncio.shield(self.store.save(row))
        except StoreError:
            log.exception("the cancelled rollout %s could not be kept", row.rollout_id)

    async def _replayed(self, request: RolloutRequest) -> Sequence[Answer] | None:
        """The answers of the rollout that `policy.config.rollout_id` names, when `replay` is asked for, else None.

        Raises RequestError, Unavailable.
        """
        config = request.policy.config
        if "replay" not in (config.get("policy"), request.policy.policy_name):
            return None
        if self.planner.policy_name(request) != "replay":
            return None
        wanted = config.get("rollout_id")
        loc = ("body", "policy", "config", "rollout_id")
        if not isinstance(wanted, str):
            message = "policy 'replay' needs policy.config.rollout_id, the id of a stored rollout."
            raise RequestError(message, fields=(FieldProblem(loc, message),), code="bad_rollout_id")
        if self.store is None:
            raise Unavailable(
                "policy 'replay' needs a store, and this server keeps none.", hint="Serve with --store PATH."
            )
        stored = await self.store.load(wanted)
        if stored is None:
            message = f"there is no stored rollout {wanted[:80]!r}."
            raise RequestError(message, fields=(FieldProblem(loc, message),), code="no_such_rollout")
        told = (from_json(event) for event in stored.events if event.get("kind") == "answered")
        return [event.answer for event in told if isinstance(event, Answered) and not event.scripted]

    # -- questions ------------------------------------------------------------------------------------------------

    async def first_view(self, request: RolloutRequest) -> View:
        """What a policy reads before its first decision: the first observation and the tools. Nothing is played.

        The request's policy is not looked at. Raises RequestError, RolloutFailed (reset broke).
        """
        control = Control()
        episode = Episode(self.planner.plan(request, own=Nobody()).plan, self.clock, control)

        def job() -> Failed | None:
            events = episode.events()
            try:
                for event in events:
                    if isinstance(event, Called | Failed):
                        return event if isinstance(event, Failed) else None
            finally:
                events.close()
            return None

        def stop() -> None:
            control.stop = "timeout"

        try:
            failed = await self.lanes.run(job, seconds=self.max_time_seconds, stop=stop)
        except LaneHung:
            message = f"reset did not come back within {self.max_time_seconds:g} s"
            raise RolloutFailed(Failure("timeout", "environment_hung", message)) from None
        if failed is not None:
            failure = Failure(failed.boundary, failed.code, failed.message, failed.hint, failed.error_id)
            raise RolloutFailed(failure) from control.cause
        return episode.view

    async def blob(self, sha256: str) -> bytes | None:
        """A picture's PNG bytes by their SHA-256 (hex); None when it is not kept (any more)."""
        if self.store is not None:
            return await self.store.blob(sha256)
        return self._pictures.get(sha256)

    def health(self) -> dict[str, Any]:
        """How the server is; answered without touching an environment."""
        return {
            "healthy": True,
            "status": "draining" if self.lanes.hung >= HUNG_LIMIT else "healthy",
            "version": __version__,
            "in_flight": self.in_flight,
            "capacity": self.max_concurrent,
            "hung_threads": self.lanes.hung,
            **({} if self.foreman is None else {"workers": self.foreman.health()}),
        }

    def instance(self, environment: str | None, split: str | None, seed: int) -> Instance:
        """The instance of a seed, for `/task_info`. Raises RequestError."""
        return self.planner.instance(environment, split, seed)

    def aggregate(self, rollouts: Sequence[RolloutSummary]) -> dict[str, float | dict[str, float] | None]:
        """The app's aggregates over finished rollouts."""
        try:
            return aggregates(self.spec, rollouts)
        except ScoringFailed as error:
            raise RolloutFailed(error.failure) from error.__cause__

    async def close(self) -> None:
        """Ends worker processes, lets idle threads go and closes the store."""
        if self.foreman is not None:
            await self.foreman.close()
        self.lanes.close()
        if self.store is not None:
            await self.store.close()


def _hung(seconds: float, *, began: bool) -> Failure:
    """The thread did not come back, or none came free. What was told so far is kept, the rest is lost to that thread."""
    if began:
        message = (
            f"the environment did not come back within the rollout's deadline of {seconds:g} s; its thread is stuck"
        )
        failure = Failure("timeout", "environment_hung", message, "Give the environment's own calls a time limit.")
    else:
        message = f"no thread came free within the rollout's deadline of {seconds:g} s, so the episode never began"
        failure = Failure("timeout", "no_thread", message, "Send fewer rollouts at once, or give them more time.")
    failure.error_id = uuid.uuid4().hex[:12]
    log.error("%s (error_id %s)", failure.message, failure.error_id)
    return failure


def _judges_can_be_asked(spec: AppSpec) -> None:
    """A judge that weighs something must be answered, or no rollout of the app has a reward."""
    for judge in spec.judges:
        if judge.weight > 0:
            raise Unavailable(
                f"judge {judge.name!r} ({judge.place}) has weight {judge.weight:g} and needs a model to ask "
                "(TASKAPP_JUDGE_URL), and this version of taskapp-kit declares judges but cannot ask them yet.",
                hint="Give it weight=0 to serve without it.",
            )


def _unasked_judges(spec: AppSpec) -> list[str]:
    names = [judge.name for judge in spec.judges]
    if not names:
        return []
    return [f"judges {', '.join(names)} are not configured: their scores are null (not_configured)"]


def _unplayed_loop(spec: AppSpec) -> list[str]:
    if spec.rollout_function is None:
        return []
    name = spec.rollout_function.__name__
    missing = "the model client, which this version of taskapp-kit does not have"
    return [f"@app.rollout {name}() needs {missing}: rollouts are played by the policy that a request names"]
