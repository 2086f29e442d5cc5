"""The hall: one rollout from request to kept result. Composes the rooms; knows no HTTP.

request -> environment, seed, config, policy -> play (in a thread) -> fold -> score -> store -> Rollout
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from taskapp_kit.contract.addresses import inference_url, stored_url
from taskapp_kit.contract.content import Image, images
from taskapp_kit.contract.events import (
    SCHEMA_VERSION,
    Answered,
    Called,
    Event,
    Failed,
    Scored,
    Started,
    fold,
    from_json,
    to_json,
)
from taskapp_kit.contract.ports import Clock, LocalPolicy, Store, StoredRollout, SystemClock, View
from taskapp_kit.contract.rollout import Rollout
from taskapp_kit.contract.scorecard import Blend, RolloutSummary, Scorecard
from taskapp_kit.contract.trajectory import Answer, Trajectory
from taskapp_kit.contract.wire import RolloutRequest
from taskapp_kit.declare.instances import Instance, find_environment, find_instance, read_config, seed_of_index
from taskapp_kit.declare.specs import AppSpec, EnvironmentSpec
from taskapp_kit.declare.taskapp import Exposure, TaskApp
from taskapp_kit.declare.tasks import row_hash
from taskapp_kit.errors import Failure, FieldProblem, RequestError, RolloutFailed, Saturated, StoreError, Unavailable
from taskapp_kit.policy.choose import KEPT_CONFIG, chosen_name, make_policy
from taskapp_kit.run.episode import Episode, drive
from taskapp_kit.run.lanes import LaneHung, Lanes, NoLane
from taskapp_kit.run.plan import Control, EpisodePlan, read_ops
from taskapp_kit.score.scoring import ScoringFailed, aggregates, score
from taskapp_kit.version import __version__, git_commit

log = logging.getLogger("taskapp_kit.service")

HUNG_LIMIT = 8
"""So many stuck threads and the server asks to be replaced: `/health` says `draining`."""
BLOB_MEMORY_BYTES = 64 * 1024 * 1024
"""Pictures that answers only name are kept this far without a store; the oldest go first."""


@dataclass(slots=True)
class _Played:
    """What came back from the environment's thread."""

    events: list[Event]
    trajectory: Trajectory
    scorecard: Scorecard | None = None
    digest: str | None = None
    failure: Failure | None = None
    cause: BaseException | None = None
    scoring_seconds: float = 0.0


class _Nobody:
    """Holds the policy's place where nothing is decided."""

    name = "nobody"

    def decide(self, view: View) -> Answer:
        """Never asked."""
        raise AssertionError(f"nobody decides in turn {view.turn}")


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
        self.lanes = Lanes(threads)
        self.in_flight = 0
        self._draw = random.SystemRandom()
        self._blobs: OrderedDict[str, bytes] = OrderedDict()
        self._blob_bytes = 0
        self._versions: dict[str, str | None] = {
            "kit": __version__,
            "app": self.spec.version,
            "git": git_commit(app.file),
        }
        self.warnings: tuple[str, ...] = (*self.spec.warnings, *_unasked_judges(self.spec))
        for warning in self.warnings:
            log.warning("%s", warning)

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
        plan, policy, warnings = await self._plan(request, own)
        blend = _blend_of(request)
        rollout_id = uuid.uuid4().hex
        control = Control()
        episode = Episode(plan, self.clock, control)
        events: list[Event] = []

        def told(event: Event) -> None:
            events.append(event)
            if tell is not None:
                tell(event)

        def job() -> _Played:
            drive(episode, policy, events.append if tell is None else told)
            return self._finish(events, plan, blend, control)

        def stop(reason: Literal["timeout", "cancelled"]) -> None:
            control.stop = control.stop or reason

        seconds = min(request.safety.max_time_s, self.max_time_seconds)
        try:
            played = await self.lanes.run(job, seconds=seconds, stop=lambda: stop("timeout"))
        except LaneHung as hung:
            played = self._hung(list(events), plan, control, seconds, began=not isinstance(hung, NoLane))
        except asyncio.CancelledError:
            stop("cancelled")
            elapsed = self.clock.monotonic() - began
            await self._keep_cancelled(request, plan, list(events), rollout_id, created_at, elapsed, key_label)
            raise
        trajectory, card = played.trajectory, played.scorecard
        elapsed = self.clock.monotonic() - began
        timing = {
            "environment": episode.environment_seconds,
            "policy": episode.policy_seconds,
            "scoring": played.scoring_seconds,
            "framework": max(
                0.0, elapsed - episode.environment_seconds - episode.policy_seconds - played.scoring_seconds
            ),
            "total": elapsed,
        }
        digest = played.digest
        if card is not None:
            events.append(Scored(card.to_json()))
        if self.store is not None:
            await self.store.save(self._row(request, plan, played, rollout_id, created_at, digest, timing, key_label))
        else:
            self._remember(_pictures(trajectory))
        if played.failure is not None or card is None or digest is None:
            failure = played.failure or Failure("scoring", "no_scorecard", "the rollout was not scored")
            raise RolloutFailed(failure, rollout_id=rollout_id) from played.cause
        return Rollout(
            rollout_id=rollout_id,
            request=request,
            created_at=created_at,
            trajectory=trajectory,
            events=events,
            scorecard=card,
            digest=digest,
            policy=plan.policy,
            ops_executed=episode.ops,
            warnings=warnings,
            timing=timing,
            usage=_usage(trajectory),
            versions={**self._versions, "environment": plan.environment.version},
        )

    async def first_view(self, request: RolloutRequest) -> View:
        """What a policy reads before its first decision: the first observation and the tools. Nothing is played.

        The request's policy is not looked at. Raises RequestError, RolloutFailed (reset broke).
        """
        plan, _, _ = await self._plan(request, _Nobody())
        control = Control()
        episode = Episode(plan, self.clock, control)

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

    async def _plan(
        self, request: RolloutRequest, own: LocalPolicy | None = None
    ) -> tuple[EpisodePlan, LocalPolicy, list[str]]:
        """Everything that can be wrong with a request is found here, before anything runs. own: acts in any case."""
        spec = find_environment(self.spec, request.env.env_name)
        read = read_config(spec, request.env.config)
        seed = request.env.seed
        if read.index is not None:
            at = seed_of_index(spec, read.split, read.index)
            if seed is not None and seed != at:
                message = f"env.seed {seed} and env.config.index {read.index} (seed {at}) name two episodes."
                raise RequestError(
                    message, fields=(FieldProblem(("body", "env", "seed"), message),), hint="Give one of them."
                )
            seed = at
        instance = find_instance(spec, read.split, seed, self._draw, read.wanted)
        program = read_ops(request.ops)
        config = request.policy.config
        decided = program is None or "agent" in program  # else every action is the caller's own
        policy = own or (await self._policy(request, spec, instance) if decided else _Nobody())
        plan = EpisodePlan(
            environment=spec,
            split=instance.split,
            seed=instance.seed,
            config=read.given,
            arguments=read.arguments,
            policy=policy.name,
            folder=self.app.file.parent,
            task=instance.task,
            program=program,
            max_turns=spec.max_turns,
            max_steps=spec.max_steps,
            max_ops=request.safety.max_ops,
            wants_images=config.get("images") is not False,
        )
        return plan, policy, read.warnings

    async def _policy(self, request: RolloutRequest, spec: EnvironmentSpec, instance: Instance) -> LocalPolicy:
        config = request.policy.config
        url = inference_url(config, request.inference_url)
        name = chosen_name(self.spec, spec.name, config, request.policy.policy_name, url)
        answers = await self._stored_answers(config) if name == "replay" else None
        return make_policy(self.spec, spec, name, config, split=instance.split, seed=instance.seed, answers=answers)

    def _finish(self, events: list[Event], plan: EpisodePlan, blend: Blend | None, control: Control) -> _Played:
        """In the environment's thread, for criteria are the author's code too."""
        trajectory = fold(events)
        failed = next((event for event in reversed(events) if isinstance(event, Failed)), None)
        if failed is not None:
            failure = Failure(failed.boundary, failed.code, failed.message, failed.hint, failed.error_id)
            return _Played(events, trajectory, failure=failure, cause=control.cause)
        digest = trajectory.digest()
        for picture in _pictures(trajectory):
            _ = picture.hash  # encoded here: the event loop has better things to do
        began = self.clock.monotonic()
        try:
            card = score(self.spec, trajectory, task=plan.task, config=plan.arguments, blend=blend)
        except ScoringFailed as error:
            return _Played(events, trajectory, digest=digest, failure=error.failure, cause=error.__cause__)
        return _Played(events, trajectory, card, digest, scoring_seconds=self.clock.monotonic() - began)

    def _hung(
        self, events: list[Event], plan: EpisodePlan, control: Control, seconds: float, *, began: bool
    ) -> _Played:  # fmt: skip
        """The environment's thread did not come back: what was told so far is kept, the rest is lost to that thread."""
        if began:
            failure = Failure(
                "timeout", "environment_hung",
                f"the environment did not come back within the rollout's deadline of {seconds:g} s; its thread is stuck",
                "Give the environment's own calls a time limit.",
            )  # fmt: skip
        else:
            failure = Failure(
                "timeout", "no_thread",
                f"no thread came free within the rollout's deadline of {seconds:g} s, so the episode never began",
                "Send fewer rollouts at once, or give them more time.",
            )  # fmt: skip
        failure.error_id = uuid.uuid4().hex[:12]
        log.error("%s (error_id %s)", failure.message, failure.error_id)
        if not events:
            spec = plan.environment
            events.append(Started(spec.name, spec.version, plan.split, plan.seed, plan.config, plan.policy))
        events.append(Failed("timeout", failure.code, failure.message, failure.error_id, failure.hint))
        trajectory = fold(events)
        trajectory.status, trajectory.stop_reason = "failed", failure.code
        return _Played(events, trajectory, failure=failure, cause=control.cause)

    # -- the store ------------------------------------------------------------------------------------------------

    async def _stored_answers(self, config: dict[str, Any]) -> Sequence[Answer]:
        """The answers of the rollout that `policy.config.rollout_id` names. Raises RequestError, Unavailable."""
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

    def _row(
        self, request: RolloutRequest, plan: EpisodePlan, played: _Played, rollout_id: str, created_at: float,
        digest: str | None, timing: dict[str, float], key_label: str | None,
    ) -> StoredRollout:  # fmt: skip
        trajectory, card, failure = played.trajectory, played.scorecard, played.failure
        config = request.policy.config
        kept = {name: config[name] for name in KEPT_CONFIG if name in config}
        kept["name"] = plan.policy
        url = inference_url(config, request.inference_url)
        if url is not None:
            kept["inference_url"] = stored_url(url)
        told = [to_json(seq, event) for seq, event in enumerate(played.events)]
        private = {}
        for event in told:
            if event.pop("final_state", None) is not None:
                private["final_state"] = trajectory.final_state
        return StoredRollout(
            rollout_id=rollout_id,
            run_id=request.run_id,
            group_id=request.group_id,
            created_at=created_at,
            app=self.spec.name,
            app_version=self.spec.version,
            environment=trajectory.environment,
            environment_version=trajectory.version,
            split=trajectory.split,
            seed=trajectory.seed,
            config=plan.config,
            policy=kept,
            mode=request.mode,
            status="failed" if failure is not None else trajectory.status,
            stop_reason=trajectory.stop_reason,
            length=trajectory.length,
            total_reward=trajectory.total_reward,
            events=told,
            spec_hash=self.spec.hash,
            kit_version=__version__,
            schema_version=SCHEMA_VERSION,
            row_hash=row_hash(plan.task) if plan.task is not None else None,
            reward=card.reward if card is not None else None,
            outcome_score=card.outcome_score if card is not None else None,
            events_score=card.events_score if card is not None else None,
            digest=digest,
            scorecard=card.to_json() if card is not None else None,
            failure=None
            if failure is None
            else {
                "boundary": failure.boundary,
                "code": failure.code,
                "message": failure.message,
                "error_id": failure.error_id,
            },
            private=private,
            timing=timing,
            seconds=timing["total"],
            key_label=key_label,
            blobs={picture.hash: picture.png for picture in _pictures(trajectory)},
        )

    async def _keep_cancelled(
        self, request: RolloutRequest, plan: EpisodePlan, events: list[Event], rollout_id: str, created_at: float,
        elapsed: float, key_label: str | None,
    ) -> None:  # fmt: skip
        """The client is gone: what was played until now is kept as cancelled."""
        if self.store is None or not events:
            return
        failure = Failure("cancelled", "cancelled", "the client went away before the rollout ended")
        events.append(Failed(failure.boundary, failure.code, failure.message))
        trajectory = fold(events)
        trajectory.status, trajectory.stop_reason = "failed", failure.code
        played = _Played(events, trajectory, failure=failure)
        row = self._row(request, plan, played, rollout_id, created_at, None, {"total": elapsed}, key_label)
        try:
            await asyncio.shield(self.store.save(row))
        except StoreError:
            log.exception("the cancelled rollout %s could not be kept", rollout_id)

    def _remember(self, pictures: Sequence[Image]) -> None:
        """Without a store an answer's `/blobs/{hash}` is served from memory."""
        for picture in pictures:
            if picture.hash not in self._blobs:
                self._blobs[picture.hash] = picture.png
                self._blob_bytes += len(picture.png)
        while self._blob_bytes > BLOB_MEMORY_BYTES:
            _, dropped = self._blobs.popitem(last=False)
            self._blob_bytes -= len(dropped)

    async def blob(self, sha256: str) -> bytes | None:
        """A picture's PNG bytes by their SHA-256 (hex); None when it is not kept (any more)."""
        if self.store is not None:
            return await self.store.blob(sha256)
        return self._blobs.get(sha256)

    # -- questions ------------------------------------------------------------------------------------------------

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
        return find_instance(find_environment(self.spec, environment), split, seed, self._draw)

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


def _pictures(trajectory: Trajectory) -> list[Image]:
    """Every picture that was seen, in order."""
    found = list(images(trajectory.initial))
    for step in trajectory.steps:
        if type(step.observation) is list:
            found.extend(images(step.observation))
    return found


def _usage(trajectory: Trajectory) -> dict[str, float]:
    """Tokens over all turns, as the endpoint counted them."""
    total: dict[str, float] = {}
    for turn in trajectory.turns:
        for name, count in turn.answer.usage.items():
            total[name] = total.get(name, 0.0) + count
    return total


def _blend_of(request: RolloutRequest) -> Blend | None:
    """The request's own formula. Raises RequestError when all its weights are 0."""
    asked = request.reward
    if asked is None:
        return None
    if not (asked.env or asked.event or asked.outcome):
        message = "reward has only weights of 0, so no reward would be defined."
        raise RequestError(message, fields=(FieldProblem(("body", "reward"), message),), hint="Give one weight > 0.")
    return Blend(asked.env, asked.event, asked.outcome)


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
