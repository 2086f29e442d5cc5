"""Runs a rollout in a thread of this process or in a worker process, and completes the result."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal, TypeVar

from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.errors import Failure
from taskapp_kit.logs import rollout as logged_with_id
from taskapp_kit.records.content import Json
from taskapp_kit.records.events import EncodedEvents, Event, encode
from taskapp_kit.records.protocols import Clock, LocalPolicy
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.records.scorecard import POLICY
from taskapp_kit.rollout.admission import (
    Answers,
    Asked,
    Listener,
    RunningRollout,
    cancelled,
    no_thread,
    overdue,
    thread_blocked,
)
from taskapp_kit.rollout.episode.plan import Control
from taskapp_kit.rollout.executors.remote import RolloutLost, WorkerPool, WorkerReport
from taskapp_kit.rollout.executors.shared_threads import SharedThread, SharedThreads
from taskapp_kit.rollout.executors.threads import Job, NoFreeThread, PinnedThreads, ThreadBlocked, ThreadHung
from taskapp_kit.rollout.models.access import ModelAccess, ThreadPort
from taskapp_kit.rollout.play_and_score import RolloutPlayer, given_up
from taskapp_kit.rollout.response import stored_rollout, with_timing
from taskapp_kit.wire.chat.conversation import Ask, ChatReply, ModelFailed

log = logging.getLogger("taskapp_kit.service")

T = TypeVar("T")

Cancelled = Callable[[RunningRollout, Rollout], Awaitable[None]]


class Executor:
    """The threads and worker processes of one app.

    pinned_threads: the threads for whole rollouts. model_threads: the threads for rollouts that mostly wait for a model, of
    which there may be many. models: the server's models. stores: whether to create rows for a store. versions: the versions
    of the kit and the app, and the git commit, as in the response. cancelled: a coroutine function that receives the result of a
    rollout whose asyncio task was cancelled, before the cancellation continues.
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
        stores: bool,
        versions: dict[str, str | None],
        cancelled: Cancelled,
    ) -> None:
        self._spec = spec
        self._clock = clock
        self._pinned_threads = pinned_threads
        self._model_threads = model_threads
        self.shared_threads = SharedThreads(model_threads)
        self._models = models
        self._worker_pool = worker_pool
        self._stores = stores
        self._versions = versions
        self._cancelled = cancelled
        # two limits, because a shared thread runs several calls per wake-up and a dedicated thread only one
        self._own_handoffs = HandoffLimit(OWN_HANDOFFS)
        self._shared_handoffs = HandoffLimit(SHARED_HANDOFFS)

    async def play(
        self,
        rollout: RunningRollout,
        listener: Listener | None,
        *,
        answers: Answers | None,
        prompt: bool,
        written: bool,
    ) -> Rollout:
        """Run a rollout until it ends, fails or reaches its deadline. See `Service.rollout`.

        Raises RequestError if the environment's constructor rejects env.config, Saturated if the server is stopping, and
        Unavailable if the worker processes cannot start.
        """
        pool = self._worker_pool
        if pool is not None and not rollout.own and pool.plays(rollout.plan.environment):
            # an `own` policy (a person, a test) is an object of this process, and frames can only contain JSON
            return await self._in_a_worker(pool, rollout, listener, answers, prompt=prompt, written=written)
        ask = self._ask(rollout, answers)
        report = _ThreadReport(listener, ThreadPort(ask))
        # so that readers of a running rollout see the events even if the thread never returns
        rollout.recorded = report.events
        player = RolloutPlayer(
            self._spec, rollout.plan, self._clock, report.control, report.events, report.listener, models=report.port
        )
        asks = rollout.plan.endpoint is not None or answers is not None
        if not asks or isinstance(rollout.plan.actor, LocalPolicy):
            # An author's loop waits in its thread for the model's replies, so there may be as many threads as rollouts in
            # flight.
            threads = self._model_threads if asks else self._pinned_threads
            return await self._in_a_thread(rollout, report, player, threads)
        return await EpisodeDriver(self, rollout, report, player).run(ask)

    def _ask(self, rollout: RunningRollout, answers: Answers | None) -> Ask:
        """Return the function with which the rollout calls models. `answers`, if not None, replaces the policy's model."""
        models = self._models.of_rollout(rollout.plan.endpoint, rollout.seconds)
        if answers is None:
            return models

        def ask(role: str, body: dict[str, Json]) -> Awaitable[ChatReply | ModelFailed]:
            return answers(body) if role == POLICY else models(role, body)

        return ask

    def handoffs(self, thread: SharedThread) -> HandoffLimit:
        """Return the limit for shared threads or the limit for dedicated threads, depending on `thread`."""
        return self._shared_handoffs if thread.is_shared else self._own_handoffs

    async def _in_a_thread(
        self, rollout: RunningRollout, report: _ThreadReport, player: RolloutPlayer, threads: PinnedThreads
    ) -> Rollout:
        def job() -> Rollout:
            with logged_with_id(rollout.rollout_id):
                return self.complete(rollout, player.play())

        try:
            return await threads.run(job, seconds=rollout.seconds, stop=report.stop)
        except ThreadHung as hung:
            failure = no_thread(rollout.seconds) if isinstance(hung, NoFreeThread) else report.overdue(rollout.seconds)
            return self.give_up(rollout, report.until_now(), failure, report.send_rest)
        except asyncio.CancelledError:
            await self.cancel(rollout, report.until_now(), report.send_rest)
            raise

    async def _in_a_worker(
        self,
        pool: WorkerPool,
        rollout: RunningRollout,
        listener: Listener | None,
        answers: Answers | None,
        *,
        prompt: bool,
        written: bool,
    ) -> Rollout:
        report = WorkerReport(listener)
        rollout.recorded = report
        try:
            result = await pool.play(
                rollout,
                report,
                ask=self._ask(rollout, answers),
                versions=self._versions,
                written=written,
                live=prompt and listener is not None,
            )
        except RolloutLost as lost:
            return self.give_up(rollout, report.events(), lost.failure, report.rest)
        except asyncio.CancelledError:
            await self.cancel(rollout, report.events(), report.rest)
            raise
        self.complete(rollout, result, report.encoded())
        if result.body is not None:
            result.body = with_timing(result.body, result.timing)
        return result

    def give_up(
        self,
        rollout: RunningRollout,
        events: list[Event],
        failure: Failure,
        send_rest: Callable[[Sequence[Event]], None],
    ) -> Rollout:
        """Complete a rollout whose thread or process did not return, with the events so far and the failure."""
        result = given_up(rollout.plan, events, failure)
        send_rest(events)
        return self.complete(rollout, result)

    async def cancel(
        self, rollout: RunningRollout, events: list[Event], send_rest: Callable[[Sequence[Event]], None]
    ) -> None:
        """Report a rollout whose asyncio task was cancelled, with the events so far."""
        result = self.give_up(rollout, events, rollout.stopped or cancelled(), send_rest)
        await self._cancelled(rollout, result)

    def complete(self, rollout: RunningRollout, result: Rollout, encoded: EncodedEvents | None = None) -> Rollout:
        """Add the timing, the images and the row to the result. encoded: the events if a worker process encoded them.

        The total time includes waiting. Time outside the environment, the policy and scoring counts as `framework`.
        """
        result.rollout_id, result.created_at = rollout.rollout_id, rollout.created_at
        # set in the process that admitted the rollout, because a worker knows neither the waiting time nor the commit
        result.versions = {**self._versions, "environment": result.version}
        total, seconds = self._clock.monotonic() - rollout.began, result.seconds
        result.timing = {**seconds, "framework": max(0.0, total - sum(seconds.values())), "total": total}
        # images are encoded in the rollout's thread or by the worker, never on the event loop
        if encoded is None:
            result.pictures = result.shown_pictures()
        # encoded in the rollout's thread or by its worker, because encoding an episode's events takes milliseconds
        if self._stores and rollout.plan.request.record.store:
            events = encode(result.events) if encoded is None else encoded
            result.stored = stored_rollout(self._spec, rollout.plan, result, events, key_label=rollout.caller.key_label)
        return result


class EpisodeDriver:
    """Runs one rollout whose model calls are awaited on the event loop. The environment runs in a thread that rollouts may share.

    Scoring runs in a dedicated thread until measurements show that it is quick, because it may wait for judges or
    processes. The environment is already closed when scoring begins.
    """

    def __init__(
        self, executor: Executor, rollout: RunningRollout, report: _ThreadReport, player: RolloutPlayer
    ) -> None:
        self._executor = executor
        self._rollout = rollout
        self._report = report
        self._player = player
        self._turns = player.turns(rollout.plan.remote_actor())
        self._until = time.monotonic() + rollout.seconds
        self._begun: Job | None = None  # the turn that `quick` began
        self._thread: SharedThread

    async def run(self, ask: Ask) -> Rollout:
        """Play, score and complete the rollout. ask: calls the rollout's models."""
        executor, rollout, report = self._executor, self._rollout, self._report
        environment = rollout.plan.environment.name
        scoring = f"{environment} scoring"
        threads = executor.shared_threads
        try:
            self._thread = await threads.open(environment, seconds=rollout.seconds)
        except NoFreeThread:
            # stored like any other failure, so that waiting clients learn the reason
            return executor.give_up(rollout, [], no_thread(rollout.seconds), report.send_rest)
        except asyncio.CancelledError:
            await executor.cancel(rollout, [], report.send_rest)
            raise
        try:
            rollout.driver = self
            await self._turns.run(ask, self._in_thread)
            rollout.driver = None
            # A rubric may wait for judges or run programs, while other environments wait for a shared thread.
            if self._thread.is_shared and not threads.is_quick(scoring):
                self._thread.close()
                self._thread = await threads.open(scoring, seconds=max(0.0, self._seconds_left()))
            return await self._in_thread(self._finished, scoring)
        except ThreadHung as hung:
            events = self._stopped("timeout")
            failure = thread_blocked() if isinstance(hung, ThreadBlocked) else report.overdue(rollout.seconds)
            return executor.give_up(rollout, events, failure, report.send_rest)
        except asyncio.CancelledError:
            await executor.cancel(rollout, self._stopped("cancelled"), report.send_rest)
            raise
        finally:
            rollout.driver = None
            self._thread.close()

    def quick(self, reply: ChatReply, asked: Asked) -> bool:
        """Implement `QuickDriver.quick`."""

        def ended(job: Job) -> None:
            body: dict[str, Json] | None = None
            if not job.future.cancelled():
                body = None if job.future.exception() else job.future.result()
                if body is None:
                    self._begun = job
            asked(body)

        return self._thread.soon(partial(self._logged, partial(self._turns.go_on, reply)), ended)

    async def _in_thread(self, job: Callable[[], T], work: str | None = None) -> T:
        # `quick` began this turn without this task, so only wait for the end.
        if self._begun is not None:
            begun, self._begun = self._begun, None
            result: T = await self._thread.outcome(begun, seconds=self._seconds_left(), stop=self._report.stop)
            return result
        async with self._executor.handoffs(self._thread).slot():
            return await self._thread.call(
                partial(self._logged, job),
                seconds=self._seconds_left(),
                stop=self._report.stop,
                work=work or self._rollout.plan.environment.name,
            )

    def _logged(self, job: Callable[[], T]) -> T:
        with logged_with_id(self._rollout.rollout_id):
            return job()

    def _finished(self) -> Rollout:
        return self._executor.complete(self._rollout, self._player.finish())

    def _stopped(self, reason: Literal["timeout", "cancelled"]) -> list[Event]:
        """Stop the episode and return the events so far, before the thread notices the stop and adds an end event."""
        # first, or the thread could add a second end event after the event that is added here
        events = self._report.until_now()
        self._report.stop(reason)
        # once its thread returns, because an environment must be closed in the thread that created it
        self._thread.post(partial(self._logged, self._turns.close))
        return events

    def _seconds_left(self) -> float:
        return self._until - time.monotonic()


OWN_HANDOFFS = 4
"""The limit for dedicated threads. With 512 rollouts, `/health` took 33 ms (p99) with this limit and 195 ms without it."""
SHARED_HANDOFFS = 8
"""The limit for shared threads, which run several jobs per wake-up. `/health` took 6 ms (median) with it, 100 ms without."""


class HandoffLimit:
    """Limits how many jobs (turns or scorings of model rollouts) run in threads at once.

    More jobs would contend for the interpreter and delay the event loop. A job that takes long releases its slot early,
    because it probably waits for something outside this interpreter.
    """

    def __init__(self, limit: int, patience_seconds: float = 0.01) -> None:
        self._free = asyncio.Semaphore(limit)
        self._patience_seconds = patience_seconds

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a slot and occupy it during one job."""
        await self._free.acquire()
        held = True

        def release() -> None:
            nonlocal held
            if held:
                held = False
                self._free.release()

        # a timer, because a call that waits for a program would occupy a slot without using it
        timer = asyncio.get_running_loop().call_later(self._patience_seconds, release)
        try:
            yield
        finally:
            timer.cancel()
            release()


class EventList(list[Event]):
    """The events of a rollout, to which the rollout's thread appends."""

    def events(self) -> list[Event]:
        """Return the events so far."""
        return list(self)


class _ThreadReport:
    """The events of a rollout in a thread. The event loop reads them if it must end the rollout without the thread."""

    def __init__(self, listener: Listener | None, port: ThreadPort) -> None:
        self.control = Control()
        self.port = port
        self.events = EventList()
        self.listener = None if listener is None else ListenerGate(listener)
        self._known: list[Event] | None = None

    def stop(self, reason: Literal["timeout", "cancelled"]) -> None:
        """Ask the thread to end the episode. If the reason is "cancelled", drop all later events, including the end event."""
        if reason == "cancelled":
            self.until_now()
        self.port.stop(reason)
        self.control.end(reason)

    def overdue(self, seconds: float) -> Failure:
        """Return the failure of a rollout whose thread has not returned within `seconds`."""
        return overdue(seconds, played=self.control.closed.is_set())

    def until_now(self) -> list[Event]:
        """Return the events up to the first call of this method. The thread may continue."""
        if self._known is None:
            if self.listener is not None:
                self.listener.close()
            self._known = list(self.events)
        return self._known

    def send_rest(self, events: Sequence[Event]) -> None:
        """Send the remaining events to the listener, because the rollout ended without its thread."""
        if self.listener is not None:
            self.listener.rest(events)


class ListenerGate:
    """Passes a thread's events to the listener until the gate is closed."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._lock = threading.Lock()
        self._sent = 0
        self._closed = False

    def __call__(self, event: Event) -> None:
        """Pass one event to the listener. Called in the rollout's thread."""
        with self._lock:
            # locked, because the event loop may close the gate between the check and the call
            if not self._closed:
                self._sent += 1
                self._listener(event)

    def close(self) -> None:
        """Drop all later events of the thread."""
        with self._lock:
            self._closed = True

    def rest(self, events: Sequence[Event]) -> None:
        """Pass the remaining events of the rollout to the listener."""
        for event in events[self._sent :]:
            self._listener(event)
        self._sent = len(events)
