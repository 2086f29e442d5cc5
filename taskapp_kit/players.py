"""Where a rollout is played: in a thread of this process or in a worker process; and what is made of it for keeping."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from taskapp_kit.contract.events import EncodedEvents, Event, encode
from taskapp_kit.contract.ports import Clock, StoredRollout
from taskapp_kit.contract.response import with_timing
from taskapp_kit.contract.rollout import Story
from taskapp_kit.course import Course, Ear, Finished, Listener
from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.errors import Failure
from taskapp_kit.foreman import Foreman, Lost, Told
from taskapp_kit.keeping import stored_rollout
from taskapp_kit.logs import rollout
from taskapp_kit.outcome import Outcome
from taskapp_kit.playing import Played, given_up, play
from taskapp_kit.run.lanes import LaneHung, Lanes, NoLane
from taskapp_kit.run.plan import Control

log = logging.getLogger("taskapp_kit.service")

Cancelled = Callable[[Course, Finished], Awaitable[None]]


class Players:
    """Threads and worker processes of one app.

    keeps: rows for a store are made. versions: of kit, app and commit, as an answer tells them. cancelled: is given what
    was played of a rollout whose task was cancelled, before the cancellation goes on.
    """

    def __init__(
        self,
        spec: AppSpec,
        clock: Clock,
        lanes: Lanes,
        foreman: Foreman | None,
        *,
        workers: int,
        keeps: bool,
        versions: dict[str, str | None],
        cancelled: Cancelled,
    ) -> None:
        self._spec = spec
        self._clock = clock
        self._lanes = lanes
        self._foreman = foreman
        self._workers = workers
        self._keeps = keeps
        self._versions = versions
        self._cancelled = cancelled

    async def play(self, course: Course, tell: Listener | None, *, prompt: bool, written: bool) -> Finished:
        """Plays it to its end, its failure or its deadline; see `Service.rollout`.

        Raises RequestError (the constructor refuses env.config), Saturated (the server closes), Unavailable (workers).
        """
        isolated = course.planned.plan.environment.isolation == "process"
        if not course.own and self._foreman is not None and (self._workers or isolated):
            return await self._in_a_worker(self._foreman, course, tell, prompt=prompt, written=written)
        return await self._in_a_thread(course, None if tell is None else Ear(tell))

    async def _in_a_thread(self, course: Course, ear: Ear | None) -> Finished:
        control = Control()
        events: list[Event] = []

        def stop(reason: Literal["timeout", "cancelled"]) -> None:
            control.stop = control.stop or reason

        def job() -> Finished:
            with rollout(course.rollout_id):
                return self._finish(course, play(self._spec, course.planned, self._clock, control, events, ear))

        try:
            return await self._lanes.run(
                job,
                seconds=course.seconds,
                stop=lambda: stop("timeout"),
            )
        except LaneHung as hung:
            failure = _hung(course.seconds, began=not isinstance(hung, NoLane))
            return self._give_up(course, _until_now(events, ear), failure, None if ear is None else ear.rest)
        except asyncio.CancelledError:
            stop("cancelled")
            rest = None if ear is None else ear.rest
            finished = self._give_up(course, _until_now(events, ear), _cancellation(course), rest)
            await self._cancelled(course, finished)
            raise

    async def _in_a_worker(
        self, foreman: Foreman, course: Course, tell: Listener | None, *, prompt: bool, written: bool
    ) -> Finished:
        told = Told(tell)
        try:
            outcome, body = await foreman.play(
                course.planned,
                told,
                answers=course.answers,
                rollout_id=course.rollout_id,
                created_at=course.created_at,
                versions=self._versions,
                seconds=course.seconds,
                written=written,
                live=prompt and tell is not None,
            )
        except Lost as lost:
            return self._give_up(course, told.events(), lost.failure, told.rest)
        except asyncio.CancelledError:
            await self._cancelled(course, self._give_up(course, told.events(), _cancellation(course), told.rest))
            raise
        timing = self._timing(course, outcome)
        events = told.encoded()
        story = Story.encoded(events, told.pictures, outcome.final_state)
        row = self._row(course, outcome, events, told.pictures, timing)
        whole = None if body is None else with_timing(body, timing)
        return Finished(outcome, story, timing, row, told.pictures, body=whole)

    def _give_up(
        self,
        course: Course,
        events: list[Event],
        failure: Failure,
        tell_rest: Callable[[Sequence[Event]], None] | None,
    ) -> Finished:
        played = given_up(course.planned, events, failure)
        if tell_rest is not None:
            tell_rest(played.events)
        return self._finish(course, played)

    def _finish(self, course: Course, played: Played) -> Finished:
        """What is made of a rollout that was played or given up in this process."""
        outcome = Outcome.of(played)
        timing = self._timing(course, outcome)
        pictures = played.pictures()
        row = self._row(course, outcome, encode(played.events), pictures, timing) if self._keeps else None
        return Finished(outcome, Story(played.events, played.trajectory), timing, row, pictures, played.cause)

    def _row(
        self,
        course: Course,
        outcome: Outcome,
        events: EncodedEvents,
        pictures: dict[str, bytes],
        timing: dict[str, float],
    ) -> StoredRollout | None:
        if not self._keeps:
            return None
        return stored_rollout(
            self._spec,
            course.planned,
            outcome,
            events,
            rollout_id=course.rollout_id,
            created_at=course.created_at,
            timing=timing,
            pictures=pictures,
            key_label=course.caller.key_label,
        )

    def _timing(self, course: Course, outcome: Outcome) -> dict[str, float]:
        """Seconds in environment, policy and scoring; what is left of the total is the framework's, waiting included."""
        total = self._clock.monotonic() - course.began
        seconds = outcome.seconds
        return {**seconds, "framework": max(0.0, total - sum(seconds.values())), "total": total}


def _until_now(events: list[Event], ear: Ear | None) -> list[Event]:
    """What a thread told that may go on talking."""
    if ear is not None:
        ear.close()
    return list(events)


def _cancellation(course: Course) -> Failure:
    return course.stopped or Failure("cancelled", "cancelled", "the client went away before the rollout ended")


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
