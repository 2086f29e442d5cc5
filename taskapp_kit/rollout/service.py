"""The service: runs one rollout from request to stored result. Composes the packages of `rollout`; independent of HTTP.

RolloutRequest -> EpisodePlan (request.py) -> RunningRollout -> Rollout (executor.py) -> store, observers, caller
"""

from __future__ import annotations

import asyncio
import logging
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from taskapp_kit.config import CALLS_PER_ANSWER, DEADLINE_SECONDS, SESSION_IDLE_SECONDS, Settings
from taskapp_kit.declare.app import Exposure, TaskApp
from taskapp_kit.declare.episode_selection import Instance
from taskapp_kit.declare.specs import AppSpec, EnvironmentSpec
from taskapp_kit.errors import (
    Failure,
    RolloutFailed,
    StoreError,
    Unavailable,
)
from taskapp_kit.records.content import Json
from taskapp_kit.records.protocols import (
    Clock,
    LocalPolicy,
    RolloutRow,
    Store,
    StoredRollout,
    SystemClock,
    View,
)
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.rollout.admission import (
    ANYONE,
    AdmissionControl,
    Answers,
    Caller,
    Listener,
    RolloutObserver,
    RunningRollout,
    StoreState,
)
from taskapp_kit.rollout.episode.environment import prepare_to_serve
from taskapp_kit.rollout.episode.episode import Episode
from taskapp_kit.rollout.episode.plan import Control
from taskapp_kit.rollout.executor import Executor
from taskapp_kit.rollout.executors.remote import WorkerPool
from taskapp_kit.rollout.executors.threads import THREADS, PinnedThreads, ThreadHung
from taskapp_kit.rollout.groups import load_group
from taskapp_kit.rollout.models.access import ModelAccess, ThreadPort, model_access
from taskapp_kit.rollout.play_and_score import until_called
from taskapp_kit.rollout.policy.options import CALLERS, offered
from taskapp_kit.rollout.request import NoPolicy, RequestPlanner, no_such_recording
from taskapp_kit.rollout.score.failures import ScoringFailed
from taskapp_kit.rollout.score.judges import check_judges
from taskapp_kit.rollout.score.scoring import aggregates
from taskapp_kit.rollout.sessions import EnvironmentSessions
from taskapp_kit.rollout.source import RolloutReader
from taskapp_kit.version import __version__, git_commit
from taskapp_kit.wire.rollout import RolloutRequest

if TYPE_CHECKING:
    from taskapp_kit.sandbox import Capabilities

log = logging.getLogger("taskapp_kit.service")

SESSIONS_SHARE = 0.75
"""The share of what can run at once that open sessions may take."""
EPISODE_SECONDS = 7 * 86_400.0
"""The deadline of a session's episode: its calls have limits of their own, and an unused session is closed."""


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Permissions and limits of a service.

    max_concurrent: rollouts in flight; one more is refused (Saturated). max_time_seconds: the server's own deadline for a
    rollout. threads: rollouts that run at once in this process. workers: processes that run rollouts instead of those
    threads, 0 for none. An environment with isolation="process" always has a process per rollout. max_calls: how many calls
    of one answer are executed. skip_judges: no judge is called and none needs a model; their scores are null
    (`judges_skipped`). session_idle_seconds: a session that is not used for so long is closed. gold: whether the policy
    `gold` may be requested; None refuses one that takes the task's row under exposure "public".
    """

    max_concurrent: int = 1024
    max_time_seconds: float = DEADLINE_SECONDS
    exposure: Exposure = "public"
    threads: int = THREADS
    workers: int = 0
    max_calls: int = CALLS_PER_ANSWER
    skip_judges: bool = False
    session_idle_seconds: float = SESSION_IDLE_SECONDS
    gold: bool | None = True


class Service:
    """Runs and scores rollouts of one app. Create and use it on one event loop; call `close` at the end.

    store: where rollouts are stored; None stores nothing. models: default: those of the process environment.
    sessions: environments that are held open between calls.

    Raises Unavailable: a judge with weight > 0 has no model.
    """

    def __init__(
        self,
        app: TaskApp,
        settings: ServiceSettings | None = None,
        *,
        store: Store | None = None,
        clock: Clock | None = None,
        models: ModelAccess | None = None,
    ) -> None:
        self.app = app
        self.settings = settings = settings or ServiceSettings()
        self.spec: AppSpec = offered(app.freeze(), exposure=settings.exposure, gold=settings.gold)
        self.store = store
        self.clock: Clock = clock or SystemClock()
        self.store_state = StoreState(self.clock)
        self.pinned_threads = PinnedThreads(settings.threads)
        # As many as rollouts in flight: those of a model mostly wait, and a thread that waits costs little.
        self.model_threads = PinnedThreads(settings.max_concurrent)
        self.models = models or model_access(Settings(), settings.exposure, self.clock)
        self.planner = RequestPlanner(
            self.spec,
            app.file.parent,
            max_calls=settings.max_calls,
            skip_judges=settings.skip_judges,
            models=self.models,
        )
        # The pool exists without --workers, too: isolation is the author's decision and not the operator's.
        isolated = any(environment.isolation == "process" for environment in self.spec.environments.values())
        workers = settings.workers
        self.worker_pool = WorkerPool(app, self.spec, workers=workers) if workers or isolated else None
        # One hook for log line, metrics and spans: called once for each rollout that has ended, so they agree. Spans
        # are built afterwards from recorded times, which costs nothing while playing and works for worker processes.
        self.watchers: list[RolloutObserver] = []
        self._sandbox: Capabilities | None = None
        self.admission = AdmissionControl(settings.max_concurrent, self._hung)
        self.stored = RolloutReader(self.spec.name, store)
        self._executor = Executor(
            self.spec,
            self.clock,
            self.pinned_threads,
            self.model_threads,
            self.models,
            self.worker_pool,
            stores=store is not None,
            versions={"kit": __version__, "app": self.spec.version, "git": git_commit(app.file)},
            cancelled=self._store_cancelled,
        )
        self.sessions = EnvironmentSessions(
            self.spec,
            self.clock,
            admit=self._admit_session,
            run=self._run_session,
            check_open=self.admission.check_open,
            capacity=self._session_places,
            idle_seconds=settings.session_idle_seconds,
            max_seconds=settings.max_time_seconds,
        )
        self.warnings: tuple[str, ...] = (
            *self.spec.warnings,
            *([] if settings.skip_judges else check_judges(self.spec, self.models.configured)),
        )
        for warning in self.warnings:
            log.warning("%s", warning)

    @classmethod
    def of(
        cls,
        app: TaskApp,
        settings: Settings,
        *,
        exposure: Exposure = "local",
        store: Store | None = None,
        clock: Clock | None = None,
        is_server_key: Callable[[str], bool] | None = None,
        **limits: Any,
    ) -> Service:
        """A service with the models and the limit on calls that `settings` have.

        is_server_key: whether a text is an API key of this server. limits: further members of `ServiceSettings`.
        """
        clock = clock or SystemClock()
        limits = {"exposure": exposure, "max_calls": settings.max_calls_per_answer, **limits}
        models = model_access(settings, exposure, clock, is_server_key=is_server_key)
        return cls(app, ServiceSettings(**limits), store=store, clock=clock, models=models)

    def prepare(self) -> None:
        """Run `setup_worker` of each environment that runs in this process; may take seconds.

        Raises Unavailable with what is missing or failed.
        """
        self._sandbox = sandbox_in_use()
        for spec in self.spec.environments.values():
            if self.worker_pool is not None and self.worker_pool.plays(spec):
                continue  # a worker process prepares it
            prepare_to_serve(spec)

    async def start(self) -> None:
        """Start the worker processes and wait until they are ready; otherwise the first rollout does.

        Processes for isolation="process" alone start when they are needed. Raises Unavailable.
        """
        # Isolated environments alone start theirs on demand: a server with none in use needs no process.
        if self.worker_pool is not None and self.worker_pool.workers:
            await self.worker_pool.start()

    async def rollout(
        self,
        request: RolloutRequest,
        *,
        caller: Caller = ANYONE,
        policy: LocalPolicy | None = None,
        listener: Listener | None = None,
        written: bool = False,
        answers: Answers | None = None,
    ) -> Rollout:
        """Run, score and store one rollout.

        policy: acts instead of the one that the request names (a person at a terminal), always in this process. answers:
        a function in the place of the policy's model; the request names an address, which is not called.
        listener: called with each event as it occurs, in the environment's thread, or on the event loop for a worker
        process (`ended` then has no end state); it must not raise. written: `Rollout.body` is needed; a worker fills it.

        Raises RequestError (invalid request), Unavailable (it needs something that this server lacks), Saturated,
        RolloutFailed (what was played is stored), StoreError (the result could not be stored).
        """
        rollout = await self.admit(request, caller=caller, policy=policy, answered=answers is not None)
        return await self.run(rollout, listener=listener, written=written, answers=answers)

    async def admit(
        self,
        request: RolloutRequest,
        *,
        caller: Caller = ANYONE,
        policy: LocalPolicy | None = None,
        rollout_id: str | None = None,
        answered: bool = False,
    ) -> RunningRollout:
        """Plan a rollout and admit it; `run` releases its capacity, so it has to be called.

        rollout_id: 32 hex digits; generated when absent. answered: `run` gets `answers`, so no model of the policy is
        called; where the request's policy is `session`, they decide, and there is no deadline. Raises RequestError,
        Unavailable, Saturated.
        """
        self.store_state.check()
        self.admission.take(caller)
        try:
            began, created_at = self.clock.monotonic(), self.clock.now()
            session = answered and request.policy.policy_name in CALLERS
            replayed = None if policy is not None or answered else self.planner.replayed(request)
            stored = None if replayed is None else await self._stored_to_replay(replayed, caller)
            # Again: the server may have begun to stop while the stored rollout was loaded.
            self.admission.check_open()
            plan = self.planner.plan(request, own=policy, stored=stored, session=session, answered=answered)
        # Cancellation included, or the place would be lost until the server restarts.
        except BaseException:
            self.admission.give_back(caller)
            raise
        # A session's caller may think for hours; each of its calls has a limit instead.
        seconds = EPISODE_SECONDS if session else min(request.safety.max_time_s, self.settings.max_time_seconds)
        return RunningRollout(
            rollout_id or uuid.uuid4().hex, plan, caller, created_at, began, seconds, own=policy is not None
        )

    async def run(
        self,
        rollout: RunningRollout,
        *,
        listener: Listener | None = None,
        prompt: bool = True,
        written: bool = False,
        answers: Answers | None = None,
    ) -> Rollout:
        """Run, score and store an admitted rollout; see `rollout`. Cancelling the task cancels it, which is stored.

        prompt: False lets a worker process send several events together, some 50 ms late, which costs it much less.
        """
        self.admission.enter(rollout)
        try:
            result = await self._executor.play(rollout, listener, answers=answers, prompt=prompt, written=written)
            rollout.settling = True
            # Returned means stored: the store commits before the caller gets the result, in one transaction with all
            # others that wait (group commit), so each pays for a share of a flush.
            await self._store_result(rollout, result)
            result.stored = None  # a caller that holds the result need not hold its encoded events, too
        except asyncio.CancelledError:
            if rollout.stopped is None or rollout.task is None:
                raise
            # The server cancelled it and not the caller, whose task goes on with the failure.
            rollout.task.uncancel()
            raise RolloutFailed(rollout.stopped, rollout_id=rollout.rollout_id) from None
        finally:
            self.admission.leave(rollout)
        if result.failure is None:
            return result
        raise RolloutFailed(result.failure, rollout_id=rollout.rollout_id) from result.cause

    async def _admit_session(self, request: RolloutRequest, caller: Caller) -> RunningRollout:
        return await self.admit(request, caller=caller, answered=True)

    async def _run_session(self, rollout: RunningRollout, listener: Listener, answers: Answers) -> Rollout:
        return await self.run(rollout, listener=listener, prompt=False, answers=answers)

    def _session_places(self, environment: EnvironmentSpec) -> int:
        """Return how many sessions may be open: the rest of what can run at once is for rollouts."""
        pool = self.worker_pool
        most = self.settings.max_concurrent
        if pool is not None and pool.plays(environment):
            most = min(most, pool.places(environment))
        return max(1, int(most * SESSIONS_SHARE))

    async def _store_result(self, rollout: RunningRollout, result: Rollout) -> None:
        if self.store is not None and result.stored is not None:
            try:
                await self.store_state.write(partial(self.store.save, result.stored))
            except asyncio.CancelledError:  # the caller is gone; the row is stored anyway
                self._notify_observers(rollout, result)
                raise
        else:
            self.stored.show_images(result.pictures)
        self._notify_observers(rollout, result)

    def _notify_observers(self, rollout: RunningRollout, result: Rollout) -> None:
        for watch in self.watchers:
            watch(rollout, result)

    async def _store_cancelled(self, rollout: RunningRollout, result: Rollout) -> None:
        """Store the events so far as cancelled, after the client has gone or the server stops."""
        try:
            # A cancelled rollout has cost calls of the model, so what was played is stored; a second cancellation must
            # not stop that.
            await asyncio.shield(self._store_result(rollout, result))
        except StoreError:
            log.exception("the cancelled rollout %s could not be stored", rollout.rollout_id)

    # -- capacity -------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """The number of rollouts in flight."""
        return self.admission.taken

    def _hung(self) -> int:
        return self.pinned_threads.hung + self.model_threads.hung

    async def drain(self, grace_seconds: float) -> None:
        """Refuse new rollouts and wait for running ones; after the grace period they are cancelled, and stored so."""
        await self.admission.drain(grace_seconds)

    async def _stored_to_replay(self, rollout_id: str, caller: Caller) -> StoredRollout:
        if self.store is None:
            raise Unavailable(
                "policy 'replay' needs a store, and this server has none.", hint="Serve with --store PATH."
            )
        stored = await self.stored.load(rollout_id, caller)
        if stored is None:
            raise no_such_recording(rollout_id)
        return stored

    # -- other requests -------------------------------------------------------------------------------------------

    async def first_view(self, request: RolloutRequest) -> View:
        """Return what a policy reads before its first decision: the first observation and the tools. Runs no action.

        The request's policy is ignored. Raises RequestError, RolloutFailed (reset failed).
        """
        control, seconds = Control(), self.settings.max_time_seconds
        port = ThreadPort(self.models.of_rollout(None, seconds))
        episode = Episode(self.planner.plan(request, own=NoPolicy()), self.clock, control, port)

        def stop(reason: Literal["timeout", "cancelled"]) -> None:
            control.end(reason)
            port.stop(reason)

        try:
            failed = await self.pinned_threads.run(lambda: until_called(episode), seconds=seconds, stop=stop)
        except ThreadHung:
            message = f"reset did not come back within {seconds:g} s"
            raise RolloutFailed(Failure("timeout", "environment_hung", message)) from None
        if failed is not None:
            raise RolloutFailed(failed) from control.cause
        return episode.view

    async def score_group(
        self, *, rollout_ids: Sequence[str] | None = None, group_id: str | None = None, caller: Caller = ANYONE
    ) -> dict[str, Json]:
        """Rank stored rollouts of one seed by the group judges: the response of `POST /score_group`.

        Counts as a rollout in flight. Raises RequestError, Unavailable, Saturated, RolloutFailed, StoreError.
        """
        self.admission.take(caller)
        seconds = self.settings.max_time_seconds
        try:
            group = await load_group(self.planner, self.stored, caller, rollout_ids=rollout_ids, group_id=group_id)
            port = ThreadPort(self.models.of_rollout(None, seconds))
            return await self.model_threads.run(lambda: group.score(port), seconds=seconds, stop=port.stop)
        except ThreadHung:
            message = f"the group judges gave no verdict within {seconds:g} s"
            raise RolloutFailed(Failure("timeout", "deadline", message)) from None
        finally:
            self.admission.give_back(caller)

    def health(self) -> dict[str, Any]:
        """Return the server's state, without using an environment."""
        failing = "store_failing" if self.store_state.failing else "healthy"
        return {
            "healthy": True,
            "status": "draining" if self.admission.draining else failing,
            "version": __version__,
            "in_flight": self.in_flight,
            "capacity": self.settings.max_concurrent,
            "hung_threads": self._hung(),
            "sessions": self.sessions.health(),
            **({} if self.store is None else {"store": self.store_state.to_json()}),
            **({} if self.worker_pool is None else {"workers": self.worker_pool.health()}),
            **({} if self._sandbox is None else {"sandbox": self._sandbox.to_dict()}),
        }

    def instance(self, environment: str | None, split: str | None, seed: int) -> Instance:
        """Return the instance of a seed, for `/task_info`. Raises RequestError."""
        return self.planner.instance(environment, split, seed)

    def aggregate(self, rollouts: Sequence[RolloutRow]) -> dict[str, float | dict[str, float] | None]:
        """Return the app's aggregates over finished rollouts."""
        try:
            return aggregates(self.spec, rollouts)
        except ScoringFailed as error:
            raise RolloutFailed(error.failure) from error.__cause__

    async def close(self) -> None:
        """Stop running rollouts, end worker processes and idle threads, and close the store."""
        # In this order: what still runs needs threads, processes and the store until it has ended.
        await self.sessions.close()
        await self.drain(0.0)
        if self.worker_pool is not None:
            await self.worker_pool.close()
        await self.pinned_threads.quiet(self.pinned_threads.grace_seconds)
        await self.model_threads.quiet(self.model_threads.grace_seconds)
        self.pinned_threads.close()
        self.model_threads.close()
        await self.models.close()
        await self.store_state.close()
        if self.store is not None:
            await self.store.close()


def sandbox_in_use() -> Capabilities | None:
    """Return the probe's report when a file loaded in this process imports `taskapp_kit.sandbox`, else None.

    Other apps neither probe nor load it. The first call probes, which takes some tenths of a second.
    """
    # Importing it would probe the machine in every server, for the few whose app runs programs.
    if "taskapp_kit.sandbox" not in sys.modules:
        return None
    from taskapp_kit.sandbox import capabilities

    return capabilities()
