"""Where a rollout is played: in a thread of this process or in a worker process; and what is made of it for keeping."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal, TypeVar

from taskapp_kit.contract.chat import POLICY
from taskapp_kit.contract.events import EncodedEvents, Event, encode
from taskapp_kit.contract.protocols import Clock, LocalPolicy, StoredRollout
from taskapp_kit.contract.result import Story
from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.errors import Failure
from taskapp_kit.logs import rollout
from taskapp_kit.rollout.episode.plan import Control
from taskapp_kit.rollout.in_flight import Finished, InFlightRollout, Listener, ListenerGate
from taskapp_kit.rollout.models.access import ModelAccess, ThreadPort
from taskapp_kit.rollout.outcome import Outcome
from taskapp_kit.rollout.play_and_score import Performance, Played, given_up, play
from taskapp_kit.rollout.response import with_timing
from taskapp_kit.rollout.stored_record import stored_rollout
from taskapp_kit.rollout.workers.remote import RolloutLost, WorkerPool, WorkerReport
from taskapp_kit.rollout.workers.threads import NoFreeThread, PinnedThreads, ThreadHung

log = logging.getLogger("taskapp_kit.service")

T = TypeVar("T")

Cancelled = Callable[[InFlightRollout, Finished], Awaitable[None]]


class Executor:
    """Threads and worker processes of one app.

    pinned_threads: threads in which whole rollouts are played. model_threads: those of rollouts that mostly wait for a model, so
    there may be many. models: asks them. keeps: rows for a store are made. versions: of kit, app and commit, as an
    answer tells them. cancelled: is given what was played of a rollout whose task was cancelled, before the
    cancellation goes on.
    """

    def __init__(
        self,
        spec: AppSpec,
        clock: Clock,
        pinned_threads: PinnedThreads,
        model_threads: PinnedThreads,
        models: ModelAccess,
        worker_pool: WorkerPool | None,
        *,
        workers: int,
        keeps: bool,
        versions: dict[str, str | None],
        cancelled: Cancelled,
    ) -> None:
        self._spec = spec
        self._clock = clock
        self._pinned_threads = pinned_threads
        self._model_threads = model_threads
        self._models = models
        self._worker_pool = worker_pool
        self._workers = workers
        self._keeps = keeps
        self._versions = versions
        self._cancelled = cancelled
        self._hops = HandoffLimit()

    async def play(self, course: InFlightRollout, tell: Listener | None, *, prompt: bool, written: bool) -> Finished:
        """Plays it to its end, its failure or its deadline; see `Service.rollout`.

        Raises RequestError (the constructor refuses env.config), Saturated (the server closes), Unavailable (workers).
        """
        isolated = course.planned.plan.environment.isolation == "process"
        if not course.own and self._worker_pool is not None and (self._workers or isolated):
            return await self._in_a_worker(self._worker_pool, course, tell, prompt=prompt, written=written)
        ear = None if tell is None else ListenerGate(tell)
        if course.endpoint is None or isinstance(course.planned.policy, LocalPolicy):
            pinned_threads = self._pinned_threads if course.endpoint is None else self._model_threads
            return await self._in_a_thread(course, ear, pinned_threads)
        return await self._with_a_model(course, ear)

    async def _in_a_thread(
        self, course: InFlightRollout, ear: ListenerGate | None, pinned_threads: PinnedThreads
    ) -> Finished:
        story = _Story(ear, ThreadPort(self._models.of_rollout(course.endpoint, course.seconds)))

        def job() -> Finished:
            with rollout(course.rollout_id):
                return self._finish(
                    course,
                    play(self._spec, course.planned, self._clock, story.control, story.events, ear, models=story.port),
                )

        try:
            return await pinned_threads.run(job, seconds=course.seconds, stop=story.stop)
        except ThreadHung as hung:
            failure = (
                _no_thread(course.seconds)
                if isinstance(hung, NoFreeThread)
                else _overdue(course.seconds, story.control)
            )
            return self._give_up(course, story.until_now(), failure, story.tell_rest)
        except asyncio.CancelledError:
            finished = self._give_up(course, story.until_now(), _cancellation(course), story.tell_rest)
            await self._cancelled(course, finished)
            raise

    async def _with_a_model(self, course: InFlightRollout, ear: ListenerGate | None) -> Finished:
        """The environment has a thread of its own; between two of its hops the model is awaited here."""
        ask = self._models.of_rollout(course.endpoint, course.seconds)
        story = _Story(ear, ThreadPort(ask))
        performance = Performance(
            self._spec, course.planned, self._clock, story.control, story.events, ear, models=story.port
        )
        turns = performance.turns(course.planned.remote())
        until = time.monotonic() + course.seconds

        def left() -> float:
            return until - time.monotonic()

        async def hop(job: Callable[[], T]) -> T:
            def in_the_thread() -> T:
                with rollout(course.rollout_id):
                    return job()

            async with self._hops.one():
                return await pinned_thread.call(in_the_thread, seconds=left(), stop=story.stop)

        try:
            pinned_thread = await self._model_threads.open(seconds=course.seconds)
        except NoFreeThread:
            return self._give_up(course, [], _no_thread(course.seconds), story.tell_rest)
        try:
            body = await hop(turns.begin)
            while body is not None:
                came = await ask(POLICY, body)
                body = await hop(partial(turns.go_on, came))
            return await hop(lambda: self._finish(course, performance.finish()))
        except ThreadHung:
            pinned_thread.post(turns.close)
            return self._give_up(course, story.until_now(), _overdue(course.seconds, story.control), story.tell_rest)
        except asyncio.CancelledError:
            told = story.until_now()
            story.stop("cancelled")
            pinned_thread.post(turns.close)
            finished = self._give_up(course, told, _cancellation(course), story.tell_rest)
            await self._cancelled(course, finished)
            raise
        finally:
            pinned_thread.close()

    async def _in_a_worker(
        self, worker_pool: WorkerPool, course: InFlightRollout, tell: Listener | None, *, prompt: bool, written: bool
    ) -> Finished:
        told = WorkerReport(tell)
        try:
            outcome, body = await worker_pool.play(
                course.planned,
                told,
                ask=self._models.of_rollout(course.endpoint, course.seconds),
                recording=course.recording,
                rollout_id=course.rollout_id,
                created_at=course.created_at,
                versions=self._versions,
                seconds=course.seconds,
                written=written,
                live=prompt and tell is not None,
            )
        except RolloutLost as lost:
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
        course: InFlightRollout,
        events: list[Event],
        failure: Failure,
        tell_rest: Callable[[Sequence[Event]], None] | None,
    ) -> Finished:
        played = given_up(course.planned, events, failure)
        if tell_rest is not None:
            tell_rest(played.events)
        return self._finish(course, played)

    def _finish(self, course: InFlightRollout, played: Played) -> Finished:
        """What is made of a rollout that was played or given up in this process."""
        outcome = Outcome.of(played)
        timing = self._timing(course, outcome)
        pictures = played.pictures()
        row = self._row(course, outcome, encode(played.events), pictures, timing) if self._keeps else None
        return Finished(outcome, Story(played.events, played.trajectory), timing, row, pictures, played.cause)

    def _row(
        self,
        course: InFlightRollout,
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

    def _timing(self, course: InFlightRollout, outcome: Outcome) -> dict[str, float]:
        """Seconds in environment, policy and scoring; what is left of the total is the framework's, waiting included."""
        total = self._clock.monotonic() - course.began
        seconds = outcome.seconds
        return {**seconds, "framework": max(0.0, total - sum(seconds.values())), "total": total}


class HandoffLimit:
    """So many short hops of model rollouts to their threads at once: more would only contend, and hold up the event loop.

    With 512 rollouts in flight `/health` answered within 33 ms (p99), against 195 ms without this. A hop that takes long
    gives its place back, for it waits for something else than this interpreter.
    """

    def __init__(self, most: int = 4, patience_seconds: float = 0.01) -> None:
        self._free = asyncio.Semaphore(most)
        self._patience_seconds = patience_seconds

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """One hop."""
        await self._free.acquire()
        held = True

        def give_back() -> None:
            nonlocal held
            if held:
                held = False
                self._free.release()

        timer = asyncio.get_running_loop().call_later(self._patience_seconds, give_back)
        try:
            yield
        finally:
            timer.cancel()
            give_back()


class _Story:
    """What a thread tells of a rollout, seen from the event loop, which may have to end it without that thread."""

    def __init__(self, ear: ListenerGate | None, port: ThreadPort) -> None:
        self.control = Control()
        self.port = port
        self.events: list[Event] = []
        self.tell_rest = None if ear is None else ear.rest
        self._ear = ear
        self._told: list[Event] | None = None

    def stop(self, reason: Literal["timeout", "cancelled"]) -> None:
        """Asks the thread to end the episode. Of a cancelled one nothing is heard from now on, its own end neither."""
        if reason == "cancelled":
            self.until_now()
        self.port.stop(reason)
        self.control.stop = self.control.stop or reason

    def until_now(self) -> list[Event]:
        """What was told when this was first asked; the thread may go on talking."""
        if self._told is None:
            if self._ear is not None:
                self._ear.close()
            self._told = list(self.events)
        return self._told


def _cancellation(course: InFlightRollout) -> Failure:
    return course.stopped or Failure(
        "cancelled", "cancelled", "the client went away, or cancelled the rollout, before it ended"
    )


def _overdue(seconds: float, control: Control) -> Failure:
    """The thread did not come back in time. What was told so far is kept, the rest is lost to that thread."""
    if control.closed.is_set():  # the environment is done: what takes long is folding, scoring or writing
        message = (
            f"the rollout reached its deadline of {seconds:g} s after its episode, before it was scored and written"
        )
        return _logged(Failure("timeout", "deadline", message, "Give safety.max_time_s more seconds."))
    message = f"the environment did not come back within the rollout's deadline of {seconds:g} s; its thread is stuck"
    return _logged(Failure("timeout", "environment_hung", message, "Give the environment's own calls a time limit."))


def _no_thread(seconds: float) -> Failure:
    """No thread came free in time."""
    message = f"no thread came free within the rollout's deadline of {seconds:g} s, so the episode never began"
    return _logged(Failure("timeout", "no_thread", message, "Send fewer rollouts at once, or give them more time."))


def _logged(failure: Failure) -> Failure:
    failure.error_id = uuid.uuid4().hex[:12]
    log.error("%s (error_id %s)", failure.message, failure.error_id)
    return failure
