"""The hall: one rollout from request to kept result. Composes the rooms; knows no HTTP.

request -> planning (environment, seed, config, policy) -> playing (in a thread: play, fold, score) -> keeping -> Rollout
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from taskapp_kit.contract.events import Answered, Called, Event, Failed, from_json
from taskapp_kit.contract.ports import Clock, LocalPolicy, Store, StoredRollout, SystemClock, View
from taskapp_kit.contract.rollout import Rollout
from taskapp_kit.contract.scorecard import RolloutSummary
from taskapp_kit.contract.trajectory import Answer, Trajectory
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
    TaskappError,
    Unavailable,
)
from taskapp_kit.keeping import PictureMemory, stored_rollout
from taskapp_kit.planning import Nobody, Planned, Planner
from taskapp_kit.playing import Played, given_up, play
from taskapp_kit.run.episode import Episode
from taskapp_kit.run.lanes import LaneHung, Lanes, NoLane
from taskapp_kit.run.plan import Control
from taskapp_kit.run.stage import prepare
from taskapp_kit.score.scoring import ScoringFailed, aggregates
from taskapp_kit.version import __version__, git_commit

log = logging.getLogger("taskapp_kit.service")

HUNG_LIMIT = 8
"""So many stuck threads and the server asks to be replaced: `/health` says `draining`."""


@dataclass(slots=True)
class _Finished:
    """What comes back from the environment's thread: the rollout, and what is made of it there for the store.

    pictures: PNG bytes by hash, encoded in that thread; the row holds them when there is a store.
    """

    played: Played
    timing: dict[str, float]
    row: StoredRollout | None
    pictures: dict[str, bytes]


class Service:
    """Plays and scores rollouts of one app. Make it and use it on one event loop; call `close` at the end.

    store: where rollouts are kept, None keeps nothing. max_concurrent: rollouts under way at once; one more is refused
    (Saturated). max_time_seconds: the server's own deadline for a rollout.
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
        """Runs every environment's `setup_worker`; may take seconds. Raises Unavailable: what is missing, or what broke."""
        for spec in self.spec.environments.values():
            try:
                prepare(spec)
            except TaskappError:
                raise
            except Exception as error:
                raise Unavailable(
                    f"environment {spec.name!r} cannot be set up: {spec.cls.__name__}.setup_worker raised "
                    f"{type(error).__name__}: {error}.",
                    hint="Mend setup_worker, or install what it needs.",
                ) from error

    async def rollout(
        self,
        request: RolloutRequest,
        *,
        key_label: str | None = None,
        policy: LocalPolicy | None = None,
        tell: Callable[[Event], None] | None = None,
    ) -> Rollout:
        """Plays, scores and keeps one rollout.

        policy: acts in place of the one that the request names (a person at a terminal). tell: is given each event as
        it happens, in the environment's thread; it must not raise.

        Raises RequestError (the request is wrong), Unavailable (it needs a part that is not here), Saturated,
        RolloutFailed (something broke; what was played is kept), StoreError (it could not be kept).
        """
        if self.in_flight >= self.max_concurrent:
            raise Saturated(f"{self.in_flight} rollouts are under way, as many as this server takes at once.")
        self.in_flight += 1
        try:
            return await self._rollout(request, key_label, policy, tell)
        finally:
            self.in_flight -= 1

    async def _rollout(
        self,
        request: RolloutRequest,
        key_label: str | None,
        own: LocalPolicy | None,
        tell: Callable[[Event], None] | None,
    ) -> Rollout:
        began, created_at = self.clock.monotonic(), self.clock.now()
        answers = None if own is not None else await self._replayed(request)
        planned = self.planner.plan(request, own=own, answers=answers)
        rollout_id = uuid.uuid4().hex
        control = Control()
        events: list[Event] = []

        def finish(played: Played) -> _Finished:
            timing = _timing(played.seconds, self.clock.monotonic() - began)
            pictures = played.pictures()
            row = None
            if self.store is not None:
                row = stored_rollout(
                    self.spec,
                    planned,
                    played,
                    rollout_id=rollout_id,
                    created_at=created_at,
                    timing=timing,
                    pictures=pictures,
                    key_label=key_label,
                )
            return _Finished(played, timing, row, pictures)

        def stop(reason: Literal["timeout", "cancelled"]) -> None:
            control.stop = control.stop or reason

        seconds = min(request.safety.max_time_s, self.max_time_seconds)
        try:
            finished = await self.lanes.run(
                lambda: finish(play(self.spec, planned, self.clock, control, events, tell)),
                seconds=seconds,
                stop=lambda: stop("timeout"),
            )
        except LaneHung as hung:
            finished = finish(given_up(planned, list(events), _hung(seconds, began=not isinstance(hung, NoLane))))
        except asyncio.CancelledError:
            stop("cancelled")
            await self._keep_cancelled(finish, planned, list(events))
            raise
        played = finished.played
        if self.store is not None and finished.row is not None:
            await self.store.save(finished.row)
        else:
            self._pictures.keep(finished.pictures)
        if played.failure is not None:
            raise RolloutFailed(played.failure, rollout_id=rollout_id) from played.cause
        assert played.scorecard is not None, "what did not fail was scored"
        assert played.digest is not None, "and has a digest"
        return Rollout(
            rollout_id=rollout_id,
            request=request,
            created_at=created_at,
            trajectory=played.trajectory,
            events=played.events,
            scorecard=played.scorecard,
            digest=played.digest,
            policy=planned.plan.policy,
            ops_executed=played.ops,
            warnings=planned.warnings,
            timing=finished.timing,
            usage=_usage(played.trajectory),
            versions={**self._versions, "environment": planned.plan.environment.version},
        )

    async def _keep_cancelled(
        self, finish: Callable[[Played], _Finished], planned: Planned, events: list[Event]
    ) -> None:
        """The client is gone: what was played until now is kept as cancelled."""
        if self.store is None or not events:
            return
        failure = Failure("cancelled", "cancelled", "the client went away before the rollout ended")
        row = finish(given_up(planned, events, failure)).row
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
        """Lets idle threads go and closes the store."""
        self.lanes.close()
        if self.store is not None:
            await self.store.close()


def _timing(seconds: dict[str, float], total: float) -> dict[str, float]:
    """Seconds in environment, policy and scoring; what is left of the total is the framework's, waiting included."""
    return {**seconds, "framework": max(0.0, total - sum(seconds.values())), "total": total}


def _usage(trajectory: Trajectory) -> dict[str, float]:
    """Tokens over all turns, as the endpoint counted them."""
    total: dict[str, float] = {}
    for turn in trajectory.turns:
        for name, count in turn.answer.usage.items():
            total[name] = total.get(name, 0.0) + count
    return total


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
