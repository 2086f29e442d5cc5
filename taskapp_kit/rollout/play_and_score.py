"""Runs one rollout: plays the episode in one thread within a token limit, and scores it. Uses no network and no store."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.errors import Failure
from taskapp_kit.records.content import Json
from taskapp_kit.records.events import Answered, Called, Event, Failed, Scored, Started, answer_to_json, fold
from taskapp_kit.records.protocols import Clock, LocalPolicy, PolicyStops, View
from taskapp_kit.records.rollout import Rollout, failure_of
from taskapp_kit.records.scorecard import POLICY
from taskapp_kit.records.trajectory import Decision
from taskapp_kit.rollout.episode.episode import Episode, PolicyFailed, policy_failure, stop_failure
from taskapp_kit.rollout.episode.plan import Control, EpisodePlan
from taskapp_kit.rollout.policy.options import MODEL, EstimatedTokens, characters_of, wants_token_ids
from taskapp_kit.rollout.score.judge_calls import mapped_json
from taskapp_kit.rollout.score.private import masker
from taskapp_kit.rollout.score.scoring import ScoringFailed, score
from taskapp_kit.wire.chat.conversation import (
    CONTEXT_OVERFLOW,
    AsksModels,
    ChatReply,
    ModelFailed,
    ModelPort,
    RemotePolicy,
)

Emit = Callable[[Event], None]
"""Called with each event, in the thread that runs the episode. It must not raise."""


def drive(episode: Episode, policy: LocalPolicy, emit: Emit) -> None:
    """Run the episode to the end in this thread, with a policy that computes its decisions."""
    events = episode.events()
    try:
        event = next(events)
        while True:
            emit(event)
            if type(event) is not Called:
                event = next(events)
                continue
            try:
                answer = policy.decide(episode.view)
            except PolicyStops as stops:
                event = events.throw(stops)
            except BaseException as error:  # sys.exit() in an author's function must not end the server
                stop = episode.control.stop
                if stop is None or isinstance(error, ModelFailed):  # PolicyStops has its own message
                    event = events.throw(policy_failure(policy.name, error))
                else:
                    event = events.throw(stop_failure(stop))
            else:
                event = events.send(answer)
    except StopIteration:
        pass
    # the environment is always closed in the thread that created it
    finally:
        events.close()


def until_called(episode: Episode, look: Callable[[Any], None] | None = None) -> Failure | None:
    """Run up to the first `Called`, after which `episode.view` is set. Return the failure of `reset`, or None if it succeeded.

    look: called with the author's instance before it is closed. It must not raise.
    """
    events = episode.events()
    try:
        for event in events:
            if isinstance(event, Failed):
                return event.failure()
            if isinstance(event, Called):
                if look is not None and episode.host is not None:
                    look(episode.host.instance)
                return None
    finally:
        events.close()
    return None


class ModelDriver:
    """Runs an episode with a policy that calls a model. Call `begin`, `go_on` and `close` in one thread only.

    Call `begin`, then `go_on` with the outcome of each model call. The episode has ended when one of them returns None.
    """

    def __init__(self, episode: Episode, policy: RemotePolicy, emit: Emit) -> None:
        self._episode = episode
        self._policy = policy
        self._emit = emit
        self._events = episode.events()

    async def run(
        self,
        ask: Callable[[str, dict[str, Json]], Awaitable[ChatReply | ModelFailed]],
        in_thread: Callable[[Callable[[], dict[str, Json] | None]], Awaitable[dict[str, Json] | None]],
    ) -> None:
        """Run to the end on an event loop. ask: calls a role's model. in_thread: runs a function in the episode's thread."""
        body = await in_thread(self.begin)
        while body is not None:
            body = await in_thread(partial(self.go_on, await ask(POLICY, body)))

    def run_blocking(self, port: ModelPort) -> None:
        """Run to the end in this thread, which blocks while `port` calls the model."""
        body = self.begin()
        while body is not None:
            outcome: ChatReply | ModelFailed
            try:
                outcome = port.ask(POLICY, body)
            except ModelFailed as failed:
                outcome = failed
            body = self.go_on(outcome)

    def begin(self) -> dict[str, Json] | None:
        """Run up to the first model call. Return the body of the request, or None if the episode has ended."""
        return self._until_asked(lambda: next(self._events))

    def go_on(self, outcome: ChatReply | ModelFailed) -> dict[str, Json] | None:
        """Continue with the model's reply or failure. Return the body of the next request, or None if the episode has ended."""
        thrown: BaseException
        if isinstance(outcome, ModelFailed):
            # A conversation that no longer fits counts as a limit, not a failure, so that the turns so far can be scored.
            thrown = PolicyStops(CONTEXT_OVERFLOW) if outcome.overflow else PolicyFailed(outcome.failure)
            return self._until_asked(partial(self._events.throw, thrown))
        try:
            answer = self._policy.read(outcome)
        # thrown into the episode, so that the episode ends with all events and a closed environment
        except PolicyStops as stops:
            thrown = stops
        except Exception as error:
            thrown = policy_failure(self._policy.name, error)
        else:
            return self._until_asked(lambda: self._events.send(answer))
        try:
            return self._until_asked(partial(self._events.throw, thrown))
        finally:
            del thrown  # the exception's traceback refers to this frame, so a reference here would be a cycle

    def close(self) -> None:
        """Close the environment of an episode that will not continue."""
        self._events.close()

    def _until_asked(self, step: Callable[[], Event]) -> dict[str, Json] | None:
        try:
            event = step()
            while True:
                self._emit(event)
                if type(event) is not Called:
                    event = next(self._events)
                    continue
                try:
                    return self._policy.ask(self._episode.view)
                except PolicyStops as stops:
                    event = self._events.throw(stops)
                except Exception as error:
                    event = self._events.throw(policy_failure(self._policy.name, error))
        except StopIteration:
            return None


class RolloutPlayer:
    """Plays one plan in one thread, then scores the episode in any thread.

    events: a list to which events are added as they occur. Other threads can read it while the rollout's thread is blocked.
    emit: called with each event. models: calls the models of judges and of the environment.
    """

    def __init__(
        self,
        spec: AppSpec,
        plan: EpisodePlan,
        clock: Clock,
        control: Control | None = None,
        events: list[Event] | None = None,
        emit: Emit | None = None,
        *,
        models: ModelPort | None = None,
    ) -> None:
        self._spec = spec
        self._plan = plan
        self._clock = clock
        self._control = control = control or Control()
        self._events = [] if events is None else events
        self._listener = emit
        self._models = models
        limit = plan.request.safety.max_rollout_tokens
        self._meter = None if limit is None else TokenMeter(limit)
        # Judges use `models` without the meter, because the token limit ends episodes, and judges run after the episode.
        self._played_with = models if models is None or self._meter is None else MeteredPort(models, self._meter)
        self._episode = Episode(plan, clock, control, self._played_with)

    def _emit(self, event: Event) -> None:
        self._events.append(event)
        if self._listener is not None:
            self._listener(event)

    def drive(self, policy: LocalPolicy) -> None:
        """Play to the end without calling a model for the policy. Raises RequestError if the constructor rejects env.config."""
        # without a listener, skip one call for each event
        emit = self._events.append if self._listener is None else self._emit
        if policy.name != MODEL or not isinstance(policy, AsksModels):
            drive(self._episode, policy, emit)
            return
        assert self._played_with is not None, "a policy that calls a model is driven by `turns`"
        policy.use(self._played_with)
        self._control.on_stop = policy.stop
        # the episode may have been stopped before `on_stop` was set
        if self._control.stop is not None:
            policy.stop(self._control.stop)
        try:
            drive(self._episode, policy, emit)
        finally:
            policy.close()

    def turns(self, policy: RemotePolicy) -> ModelDriver:
        """Return the driver for a policy that calls a model."""
        actor = policy if self._meter is None else MeteredPolicy(policy, self._meter)
        return ModelDriver(self._episode, actor, self._emit)

    def play(self) -> Rollout:
        """Play and score a plan whose policy computes its decisions. Raises the same errors as `drive`."""
        self.drive(self._plan.local_actor())
        return self.finish()

    def finish(self) -> Rollout:
        """Score the episode and return the rollout. Exceptions of author's code become failures."""
        plan, control, events, episode = self._plan, self._control, self._events, self._episode
        # Store, response, stream, replay and digest use the same events, so the stored and the scored rollout cannot
        # disagree.
        trajectory = fold(events)
        given: dict[str, Any] = {
            "inference_url": plan.inference_url,
            "correlation_id": plan.correlation_id,
            "ops_executed": episode.ops,
            "warnings": [*plan.warnings, *episode.warnings, *_missing_tokens(plan, events)],
            "seconds": {"environment": episode.environment_seconds, "policy": episode.policy_seconds, "scoring": 0.0},
        }
        # before they are stored, because pages and exports show the stored values
        if episode.auxiliary_calls:
            mask = masker(self._spec, trajectory.environment, plan.task)
            given["auxiliary_calls"] = [mapped_json(call, mask) for call in episode.auxiliary_calls]
        # the traceback's frames refer to `control`, a cycle that only the garbage collector breaks
        cause, control.cause = control.cause, None
        failure = failure_of(events)
        if failure is not None:
            return Rollout.of_events(
                plan.request, plan.policy, events, trajectory, status="failed", failure=failure, cause=cause, **given
            )
        # before scoring, so that an episode whose scoring fails has a digest and can be scored later
        given["digest"] = trajectory.digest()
        if plan.wants_images:
            given["observation_digest"] = trajectory.observation_digest(given["digest"])
        began = self._clock.monotonic()
        try:
            card = score(
                self._spec,
                trajectory,
                task=plan.task,
                config=plan.arguments,
                blend=plan.blend,
                models=self._models,
                skip_judges=plan.skip_judges,
            )
        # a failed rollout has no reward and no scorecard, so that no failure can be averaged as a number
        except ScoringFailed as error:
            given.update(status="failed", failure=error.failure, cause=error.__cause__, judging=error.judging)
            return Rollout.of_events(plan.request, plan.policy, events, trajectory, **given)
        given["seconds"]["scoring"] = self._clock.monotonic() - began
        # the last event, so that a stream and a stored rollout contain the same score as the response
        self._emit(Scored(card.to_json()))
        return Rollout.of_events(
            plan.request, plan.policy, events, trajectory, scorecard=card, judging=card.judging, **given
        )


def _missing_tokens(plan: EpisodePlan, events: list[Event]) -> list[str]:
    """Return a warning for each kind of token data that was requested but is missing from some of the model's responses."""
    # Missing token data makes a rollout useless for training, and nothing else reports it before the update.
    if plan.policy != MODEL:
        return []
    request = plan.request
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


def given_up(plan: EpisodePlan, events: list[Event], failure: Failure) -> Rollout:
    """Return the result of a rollout whose thread or process did not return, with the events so far and the failure."""
    if not events:
        spec = plan.environment
        events.append(Started(spec.name, spec.version, plan.split, plan.seed, plan.config, plan.policy))
    # The log, the row and the response share one id, with which an operator finds the traceback in the log.
    failure.error_id = failure.error_id or uuid.uuid4().hex[:12]
    events.append(Failed(failure.boundary, failure.code, failure.message, failure.error_id, failure.hint))
    trajectory = fold(events)
    trajectory.status, trajectory.stop_reason = "failed", failure.code
    return Rollout.of_events(
        plan.request,
        plan.policy,
        events,
        trajectory,
        failure=failure,
        inference_url=plan.inference_url,
        correlation_id=plan.correlation_id,
    )


MAX_ROLLOUT_TOKENS = "max_rollout_tokens"
"""The stop reason of a rollout that has reached its token limit."""


class TokenMeter:
    """Counts the prompt and completion tokens of the policy's model and the environment's models in one rollout.

    The counts come from the endpoint, or else from an estimate based on characters. Judges do not count, because they are
    called after the episode. The last call may exceed `limit`. No call begins after the limit is reached.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.spent = 0.0
        self._estimate = EstimatedTokens()

    def check(self) -> None:
        """Raise PolicyStops if the limit is reached."""
        # checked before a call, not after it, because a reply that was paid for is used
        if self.spent >= self.limit:
            raise PolicyStops(MAX_ROLLOUT_TOKENS, self.limit)

    def count(self, body: dict[str, Json], reply: ChatReply) -> None:
        """Add the tokens of one call."""
        self.spent += reply.tokens or self._estimate.tokens(_characters(body) + characters_of(reply.message))


def _characters(body: dict[str, Json]) -> int:
    return sum(characters_of(message) for message in body.get("messages", ())) + characters_of(
        {"tools": body.get("tools", [])}
    )


class MeteredPolicy:
    """A policy whose model calls have a token limit."""

    def __init__(self, policy: RemotePolicy, meter: TokenMeter) -> None:
        self.name = policy.name
        self._policy = policy
        self._meter = meter
        self._asked: dict[str, Json] = {}

    def ask(self, view: View) -> dict[str, Json]:
        """Return the body of the next request. Raises PolicyStops if the limit is reached."""
        self._meter.check()
        self._asked = self._policy.ask(view)
        return self._asked

    def read(self, reply: ChatReply) -> Decision:
        """Return the reply as a Decision."""
        self._meter.count(self._asked, reply)
        return self._policy.read(reply)


class MeteredPort:
    """A `ModelPort` for the environment's thread, with a token limit."""

    def __init__(self, models: ModelPort, meter: TokenMeter) -> None:
        self._models = models
        self._meter = meter

    def ask(self, role: str, body: dict[str, Json]) -> ChatReply:
        """Call the model. Raises PolicyStops if the limit is reached, and the errors of `ModelPort.ask`."""
        self._meter.check()
        reply = self._models.ask(role, body)
        self._meter.count(body, reply)
        return reply
