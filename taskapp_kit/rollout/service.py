"""The service, which runs a rollout from the request to the stored result. It connects the packages of `rollout`.

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
"""The share of the capacity that open sessions may use."""
EPISODE_SECONDS = 7 * 86_400.0
"""The deadline of a session's episode. It is long, because each call has its own limit and unused sessions are closed."""


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Permissions and limits of a service.

    Attributes:
        max_concurrent: The limit on rollouts in flight. Further rollouts are rejected with Saturated.
        max_time_seconds: The server's deadline for a rollout.
        exposure: Who can reach the server. This decides which addresses may be called and which policies are offered.
        threads: How many rollouts run at once in this process.
        workers: The number of processes that run rollouts instead of threads. An environment with isolation="process"
            always has one process per rollout.
        max_calls: The limit on tool calls that are executed from one reply.
        skip_judges: Whether to skip all judges. Their scores are then null (`judges_skipped`).
        session_idle_seconds: After how many seconds without use a session is closed.
        gold: Whether the policy `gold` may be requested. None forbids it only under exposure "public", and only if it
            reads the task's row.
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
    """Runs and scores the rollouts of one app. Create and use the service on one event loop, and call `close` at the end."""

    def __init__(
        self,
        app: TaskApp,
        settings: ServiceSettings | None = None,
        *,
        store: Store | None = None,
        clock: Clock | None = None,
        models: ModelAccess | None = None,
    ) -> None:
        """Create a service.

        Args:
            app: The app. This call freezes it.
            settings: Permissions and limits.
            store: The store for rollouts. By default, nothing is stored.
            clock: The clock. Defaults to the system's clock.
            models: The models that the service may call. Defaults to the models in the process environment.

        Raises:
            Unavailable: A judge with weight > 0 has no model.
        """
        self.app = app
        self.settings = settings = settings or ServiceSettings()
        self.spec: AppSpec = offered(app.freeze(), exposure=settings.exposure, gold=settings.gold)
        self.store = store
        self.clock: Clock = clock or SystemClock()
        self.store_state = StoreState(self.clock)
        self.pinned_threads = PinnedThreads(settings.threads)
        # one thread for each rollout in flight, because a rollout with a model mostly waits, which costs little
        self.model_threads = PinnedThreads(settings.max_concurrent)
        self.models = models or model_access(Settings(), settings.exposure, self.clock)
        self.planner = RequestPlanner(
            self.spec,
            app.file.parent,
            max_calls=settings.max_calls,
            skip_judges=settings.skip_judges,
            models=self.models,
        )
        # created even without --workers, because the author, not the operator, decides about isolation
        isolated = any(environment.isolation == "process" for environment in self.spec.environments.values())
        workers = settings.workers
        self.worker_pool = WorkerPool(app, self.spec, workers=workers) if workers or isolated else None
        # One hook per ended rollout writes the log line, metrics and spans, so they agree. Spans are built from recorded
        # times, which costs nothing during the rollout and also works for worker processes.
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
        """Create a service from the settings of a process.

        Args:
            app: The app.
            settings: The process settings, which contain the models and the limit on tool calls per reply.
            exposure: Who can reach the server.
            store: The store for rollouts.
            clock: The clock. Defaults to the system's clock.
            is_server_key: A function that returns whether a string is an API key of this server.
            **limits: Other fields of `ServiceSettings`.
        """
        clock = clock or SystemClock()
        limits = {"exposure": exposure, "max_calls": settings.max_calls_per_answer, **limits}
        models = model_access(settings, exposure, clock, is_server_key=is_server_key)
        return cls(app, ServiceSettings(**limits), store=store, clock=clock, models=models)

    def prepare(self) -> None:
        """Run `setup_worker` of each environment in this process. This may take seconds. Raises Unavailable if one fails."""
        self._sandbox = sandbox_in_use()
        for spec in self.spec.environments.values():
            if self.worker_pool is not None and self.worker_pool.plays(spec):
                continue  # worker processes prepare their environments themselves
            prepare_to_serve(spec)

    async def start(self) -> None:
        """Start the worker processes and wait until they are ready. Without this call, the first rollout starts them.

        Raises Unavailable if a process cannot start.
        """
        # the processes of isolated environments start on demand
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

        Args:
            request: The request.
            caller: The client that requests the rollout.
            policy: A policy object that replaces the requested policy, such as a person at a terminal. The rollout then
                runs in this process.
            listener: A function that is called with each event as it occurs: in the environment's thread, or on the event
                loop for a worker process (`ended` then has no final state). It must not raise.
            written: Whether a worker process encodes the response in `Rollout.body`.
            answers: A function that replaces the policy's model. The request still needs an address, which is not called.

        Raises:
            RequestError: The request is invalid.
            Unavailable: The rollout needs something that this server does not have.
            Saturated: The server or the key has reached its limit, or the server is stopping.
            RolloutFailed: The rollout failed. Its events are stored.
            StoreError: The result could not be stored.
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
        """Plan a rollout and admit it. Always call `run` afterwards, because `run` releases the capacity.

        rollout_id: 32 hex digits, generated by default. answered: whether `run` will get `answers`, which replace the policy's
        model. If `policy_name` is one of `CALLERS`, `answers` makes all decisions, and the default deadline is EPISODE_SECONDS.

        Raises RequestError, Unavailable and Saturated like `rollout`.
        """
        self.store_state.check()
        self.admission.take(caller)
        try:
            began, created_at = self.clock.monotonic(), self.clock.now()
            session = answered and request.policy.policy_name in CALLERS
            replayed = None if policy is not None or answered else self.planner.replayed(request)
            stored = None if replayed is None else await self._stored_to_replay(replayed, caller)
            # checked again, because the server may have begun to stop while the stored rollout was loaded
            self.admission.check_open()
            plan = self.planner.plan(request, own=policy, stored=stored, session=session, answered=answered)
        # also for a cancellation, or the capacity would be lost until the server restarts
        except BaseException:
            self.admission.give_back(caller)
            raise
        seconds = min(request.safety.max_time_s, self.settings.max_time_seconds)
        if session and "max_time_s" not in request.safety.model_fields_set:
            seconds = EPISODE_SECONDS  # a session's caller may think for hours, so each call has a limit instead
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
        """Run, score and store an admitted rollout; see `rollout`. If this call is cancelled, the rollout is stored as cancelled.

        prompt: whether events are sent immediately. Otherwise, a worker process may delay events by about 50 ms, because
        sending several events together is much cheaper.
        """
        self.admission.enter(rollout)
        try:
            result = await self._executor.play(rollout, listener, answers=answers, prompt=prompt, written=written)
            rollout.settling = True
            # Store the result before returning it. The store commits all waiting results in one transaction (group
            # commit), so that they share the cost of a flush.
            await self._store_result(rollout, result)
            result.stored = None  # so that a caller who stores the result does not also retain the encoded events
        except asyncio.CancelledError:
            if rollout.stopped is None or rollout.task is None:
                raise
            # the server cancelled the rollout, so the caller's task continues with the failure
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
        """Return how many sessions may be open. The remaining capacity is for rollouts."""
        pool = self.worker_pool
        most = self.settings.max_concurrent
        if pool is not None and pool.plays(environment):
            most = min(most, pool.places(environment))
        return max(1, int(most * SESSIONS_SHARE))

    async def _store_result(self, rollout: RunningRollout, result: Rollout) -> None:
        if self.store is not None and result.stored is not None:
            try:
                await self.store_state.write(partial(self.store.save, result.stored))
            except asyncio.CancelledError:  # the caller disconnected, but the row is stored anyway
                self._notify_observers(rollout, result)
                raise
        else:
            self.stored.show_images(result.pictures)
        self._notify_observers(rollout, result)

    def _notify_observers(self, rollout: RunningRollout, result: Rollout) -> None:
        for watch in self.watchers:
            watch(rollout, result)

    async def _store_cancelled(self, rollout: RunningRollout, result: Rollout) -> None:
        """Store the events that were recorded before the cancellation as a cancelled rollout."""
        try:
            # The rollout has cost model calls, so its events are stored. A second cancellation must not stop the write.
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
        """Reject new rollouts and wait for running rollouts. After the grace period, cancel and store the rest."""
        await self.admission.drain(grace_seconds)

    async def _stored_to_replay(self, rollout_id: str, caller: Caller) -> StoredRollout:
        if self.store is None:
            message = "The policy 'replay' reads a stored rollout, but this server has no store."
            raise Unavailable(message, hint="Start the server with --store PATH.")
        stored = await self.stored.load(rollout_id, caller)
        if stored is None:
            raise no_such_recording(rollout_id)
        return stored

    # -- other requests -------------------------------------------------------------------------------------------

    async def first_view(self, request: RolloutRequest, look: Callable[[Any], None] | None = None) -> View:
        """Return a policy's view before its first decision, with the first observation and the tools.

        look: called with the author's instance after `reset`, in its thread. It must not raise.

        No action runs, and the requested policy is ignored. Raises RequestError if the request is invalid, and RolloutFailed
        if reset failed.
        """
        control, seconds = Control(), self.settings.max_time_seconds
        port = ThreadPort(self.models.of_rollout(None, seconds))
        episode = Episode(self.planner.plan(request, own=NoPolicy()), self.clock, control, port)

        def stop(reason: Literal["timeout", "cancelled"]) -> None:
            control.end(reason)
            port.stop(reason)

        try:
            failed = await self.pinned_threads.run(lambda: until_called(episode, look), seconds=seconds, stop=stop)
        except ThreadHung:
            message = f"the environment's reset did not return within {seconds:g} s"
            raise RolloutFailed(Failure("timeout", "environment_hung", message)) from None
        if failed is not None:
            raise RolloutFailed(failed) from control.cause
        return episode.view

    async def score_group(
        self, *, rollout_ids: Sequence[str] | None = None, group_id: str | None = None, caller: Caller = ANYONE
    ) -> dict[str, Json]:
        """Rank stored rollouts of one seed with the group judges, and return the response of `POST /score_group`.

        rollout_ids: the ids of the rollouts. None selects all rollouts of `group_id`.

        The call counts as a rollout in flight. Raises RequestError if the rollouts are not a valid group. Raises Unavailable
        if the store, the group judge or a model is missing, Saturated if the server or key is at its limit, RolloutFailed if a
        judge with weight > 0 gave no verdict, and StoreError if the store fails.
        """
        self.admission.take(caller)
        seconds = self.settings.max_time_seconds
        try:
            group = await load_group(self.planner, self.stored, caller, rollout_ids=rollout_ids, group_id=group_id)
            port = ThreadPort(self.models.of_rollout(None, seconds))
            return await self.model_threads.run(lambda: group.score(port), seconds=seconds, stop=port.stop)
        except ThreadHung:
            message = f"the group judges did not reach a verdict within {seconds:g} s"
            raise RolloutFailed(Failure("timeout", "deadline", message)) from None
        finally:
            self.admission.give_back(caller)

    def health(self) -> dict[str, Any]:
        """Return the state of the server without running an environment."""
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
        """Return the instance of a seed for `/task_info`. Raises RequestError for an unknown environment, split or seed."""
        return self.planner.instance(environment, split, seed)

    def aggregate(self, rollouts: Sequence[RolloutRow]) -> dict[str, float | dict[str, float] | None]:
        """Return the app's aggregates over finished rollouts."""
        try:
            return aggregates(self.spec, rollouts)
        except ScoringFailed as error:
            raise RolloutFailed(error.failure) from error.__cause__

    async def close(self) -> None:
        """Stop running rollouts, end worker processes and idle threads, and close the store."""
        # in this order, because running episodes need threads, processes and the store until they end
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
    """Return what the sandbox can do here, or None if this process has not imported `taskapp_kit.sandbox`.

    The first call probes the machine, which takes a few tenths of a second.
    """
    # not imported here, because every server would then probe the machine, and few apps run programs
    if "taskapp_kit.sandbox" not in sys.modules:
        return None
    from taskapp_kit.sandbox import capabilities

    return capabilities()
