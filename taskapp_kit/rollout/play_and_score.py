"""One rollout in one thread: play, fold, score. No waiting, no network, no store: criteria are the author's code too."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from taskapp_kit.contract.chat import AsksModels, ModelPort, RemotePolicy
from taskapp_kit.contract.content import Json, images
from taskapp_kit.contract.events import Answered, Event, Failed, Scored, Started, answer_to_json, fold
from taskapp_kit.contract.protocols import Clock, LocalPolicy
from taskapp_kit.contract.scorecard import JudgeRecord, Scorecard
from taskapp_kit.contract.trajectory import Trajectory
from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.errors import Failure
from taskapp_kit.rollout.episode.drivers import ModelDriver
from taskapp_kit.rollout.episode.episode import Episode, drive
from taskapp_kit.rollout.episode.plan import Control
from taskapp_kit.rollout.policy.options import wants_token_ids
from taskapp_kit.rollout.policy.select import MODEL
from taskapp_kit.rollout.request import PlannedRollout
from taskapp_kit.rollout.score.private import masker
from taskapp_kit.rollout.score.scoring import ScoringFailed, score
from taskapp_kit.rollout.token_limit import MeteredPolicy, MeteredPort, TokenMeter


@dataclass(slots=True)
class Played:
    """A rollout, played; scored unless it failed.

    digest: None when the episode failed (one whose scoring failed has a digest: it can be scored later).
    observation_digest: None then too, and when the caller asked for no pictures. cause: the exception behind a failure,
    for the log. ops: operations done. seconds: in environment, policy and scoring.
    judging: every call of a judge, of a failed scoring too. second_calls: of the models that the environment asked itself,
    private fields of the task taken out. warnings: sentences for the caller.
    """

    events: list[Event]
    trajectory: Trajectory
    scorecard: Scorecard | None = None
    digest: str | None = None
    observation_digest: str | None = None
    failure: Failure | None = None
    cause: BaseException | None = None
    ops: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    judging: JudgeRecord = field(default_factory=JudgeRecord)
    second_calls: list[Json] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def pictures(self) -> dict[str, bytes]:
        """The pictures that were seen, PNG bytes by SHA-256 (hex); encodes those that are not yet."""
        found = list(images(self.trajectory.initial))
        for step in self.trajectory.steps:
            if type(step.observation) is list:
                found.extend(images(step.observation))
        return {picture.hash: picture.png for picture in found}


class Performance:
    """One rollout as it is played: the episode, its events, in the end its score. Everything in one thread.

    events: is filled as they happen, so that another thread may keep what was told when this one is stuck. tell: is
    given each event too; it must not raise. models: for judges, and for environments that ask one.
    """

    def __init__(
        self, spec: AppSpec, planned: PlannedRollout, clock: Clock, control: Control, events: list[Event],
        tell: Callable[[Event], None] | None = None, *, models: ModelPort | None = None,
    ) -> None:  # fmt: skip
        self._spec = spec
        self._planned = planned
        self._clock = clock
        self._control = control
        self._events = events
        self._listener = tell
        self._models = models
        limit = planned.request.safety.max_rollout_tokens
        self._meter = None if limit is None else TokenMeter(limit)
        self._played_with = models if models is None or self._meter is None else MeteredPort(models, self._meter)
        self._episode = Episode(planned.plan, clock, control, self._played_with)

    def _emit(self, event: Event) -> None:
        self._events.append(event)
        if self._listener is not None:
            self._listener(event)

    def drive(self, policy: LocalPolicy) -> None:
        """Plays it to its end with a policy that decides here. RequestError: the constructor refuses env.config."""
        tell = self._events.append if self._listener is None else self._emit
        if policy.name != MODEL or not isinstance(policy, AsksModels):
            drive(self._episode, policy, tell)
            return
        assert self._played_with is not None, "a model acts where there is a way to ask it"
        policy.use(self._played_with)
        try:
            drive(self._episode, policy, tell)
        finally:
            policy.close()

    def turns(self, policy: RemotePolicy) -> ModelDriver:
        """Plays it turn by turn with a policy that decides elsewhere."""
        played_by = policy if self._meter is None else MeteredPolicy(policy, self._meter)
        return ModelDriver(self._episode, played_by, self._emit)

    def finish(self) -> Played:
        """What was played, scored unless it failed. Never raises for what author's code does."""
        control, events, planned = self._control, self._events, self._planned
        trajectory = fold(events)
        played = Played(events, trajectory, ops=self._episode.ops, cause=control.cause, warnings=self._episode.warnings)
        if self._episode.second_calls:
            mask = masker(self._spec, trajectory.environment, planned.plan.task)
            played.second_calls = [_masked(call, mask) for call in self._episode.second_calls]
        played.warnings += _missing_tokens(planned, events)
        control.cause = None  # its traceback's frames hold `control`: a ring that only the collector would break
        episode = self._episode
        played.seconds = {"environment": episode.environment_seconds, "policy": episode.policy_seconds, "scoring": 0.0}
        failed = next((event for event in reversed(events) if isinstance(event, Failed)), None)
        if failed is not None:
            played.failure = Failure(failed.boundary, failed.code, failed.message, failed.hint, failed.error_id)
            return played
        played.digest = trajectory.digest()
        if planned.plan.wants_images:
            played.observation_digest = trajectory.observation_digest(played.digest)
        began = self._clock.monotonic()
        task, arguments = planned.plan.task, planned.plan.arguments
        try:
            card = score(
                self._spec,
                trajectory,
                task=task,
                config=arguments,
                blend=planned.blend,
                models=self._models,
                skip_judges=planned.skip_judges,
            )
        except ScoringFailed as error:
            played.failure, played.cause, played.judging = error.failure, error.__cause__, error.judging
            return played
        played.seconds["scoring"] = self._clock.monotonic() - began
        played.scorecard, played.judging = card, card.judging
        self._emit(Scored(card.to_json()))
        return played


def _missing_tokens(planned: PlannedRollout, events: list[Event]) -> list[str]:
    """What was asked of a model's endpoint for training, and did not come with every answer."""
    request = planned.request
    if planned.plan.policy != MODEL:
        return []
    calls: list[dict[str, Json]] = []
    for event in events:
        if isinstance(event, Answered) and "attempts" in event.answer.details:
            calls += event.answer.details.get("earlier_calls", [])
            calls.append(answer_to_json(event.answer))
    logprobs = request.record.logprobs
    ids = wants_token_ids(request.policy.config, record_logprobs=logprobs, mode=request.mode)
    missing = {
        "token ids of the prompt": ids and sum(call.get("prompt_token_ids") is None for call in calls),
        "token ids": ids and sum(call.get("token_ids") is None for call in calls),
        "log-probabilities": logprobs and sum(call.get("logprobs") is None for call in calls),
    }
    return [
        f"{what} were asked for, and the model's endpoint sent none with {count} of {len(calls)} answers"
        for what, count in missing.items()
        if count
    ]


def _masked(value: Any, mask: Callable[[str], str]) -> Json:
    """The value with every text in it masked."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {name: _masked(part, mask) for name, part in value.items()}
    if isinstance(value, list):
        return [_masked(part, mask) for part in value]
    return value


def play(
    spec: AppSpec, planned: PlannedRollout, clock: Clock, control: Control, events: list[Event],
    tell: Callable[[Event], None] | None = None, *, models: ModelPort | None = None,
) -> Played:  # fmt: skip
    """Plays the plan, whose policy decides here, to its end and scores it; see `Performance`."""
    performance = Performance(spec, planned, clock, control, events, tell, models=models)
    performance.drive(planned.local())
    return performance.finish()


def given_up(planned: PlannedRollout, events: list[Event], failure: Failure) -> Played:
    """What is known of a rollout whose thread or process did not come back: the events until then, and the failure."""
    plan = planned.plan
    if not events:
        spec = plan.environment
        events.append(Started(spec.name, spec.version, plan.split, plan.seed, plan.config, plan.policy))
    failure.error_id = failure.error_id or uuid.uuid4().hex[:12]
    events.append(Failed(failure.boundary, failure.code, failure.message, failure.error_id, failure.hint))
    trajectory = fold(events)
    trajectory.status, trajectory.stop_reason = "failed", failure.code
    return Played(events, trajectory, failure=failure)
