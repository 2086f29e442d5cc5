"""One session: an environment held open between the calls of a caller who decides from outside.

Each episode of a session is a rollout (`Service.run`) in a task of its own, with the caller in the model's place: wherever
the policy would ask its model, the episode waits in `DrivenEpisode.answers` until the next call. So threads, worker
processes, limits, refusals, failures, scoring and the store are those of `POST /rollout`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

from taskapp_kit.declare.specs import AppSpec, EnvironmentSpec
from taskapp_kit.errors import (
    Failure,
    FieldProblem,
    IdempotencyKeyReused,
    RequestError,
    RolloutFailed,
    SessionError,
    StoreError,
)
from taskapp_kit.records.content import Content, Json, NotJson, plain
from taskapp_kit.records.protocols import Clock
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.records.scorecard import Blend
from taskapp_kit.records.seeds import SEED_LIMIT
from taskapp_kit.records.trajectory import PlayedStep
from taskapp_kit.rollout.admission import Caller, RunningRollout
from taskapp_kit.rollout.driven_episode import DrivenEpisode, Run, SessionCall, left, too_slow
from taskapp_kit.rollout.policy.caller import FINISH_MESSAGE, actions_message
from taskapp_kit.wire.rollout import RolloutRequest

Admit = Callable[[RolloutRequest, Caller], Awaitable[RunningRollout]]
"""Admits the rollout of an episode. Raises as `Service.admit`."""


@dataclass(frozen=True, slots=True)
class SessionStep:
    """The answer to one step.

    observation: the newest. steps: each action of the call with its own observation, refusal and info. reward: what this
    step adds to the episode's reward; the rewards of all steps sum to it. None: the episode's reward is undefined, which is
    known at its end. parts: `env`, `event` and, in the last step, `outcome`, each weighted by the formula; None when
    undefined. end: set when the episode is over.
    """

    turn: int
    observation: Content
    steps: Sequence[PlayedStep]
    reward: float | None
    parts: Mapping[str, float | None]
    end: Rollout | None = None

    @property
    def terminated(self) -> bool:
        """Whether the environment's rules ended the episode."""
        return self.end is not None and self.end.status == "terminated"

    @property
    def truncated(self) -> bool:
        """Whether a limit, or `finish`, ended the episode."""
        return self.end is not None and self.end.status == "truncated"


@dataclass(frozen=True, slots=True)
class SessionStart:
    """The answer to a reset: the episode's identity, and what a trainer that samples itself needs.

    actions: name, description, parameters (JSON Schema) and `text` (takes plain words) of each. messages, tools: what a
    model is sent first, in the form of chat completions. limits: None where there is none. formula: of the reward.
    end: set when a limit ended the episode before its first step.
    """

    rollout_id: str
    environment: str
    split: str
    seed: int
    observation: Content
    actions: list[dict[str, Json]]
    messages: list[dict[str, Json]]
    tools: list[dict[str, Json]]
    limits: dict[str, float | None]
    formula: str
    end: Rollout | None = None


class EnvironmentSession:
    """One session. Create it with `EnvironmentSessions.open`; use it on the service's event loop.

    Calls are one at a time. A caller that is cancelled or goes away does not end its call: repeated with the same
    `request_id`, the call returns the same answer, once it is there. `request_id` counts for the latest call only.

    protocol: the name of the protocol that opened the session, as it is stored. policy: the stored name of who decides.
    run_id: as stored with its rollouts. exclusive: only that protocol drives it.
    used_at: when the session was last used, on the service's monotonic clock.
    """

    def __init__(
        self,
        session_id: str,
        app: AppSpec,
        environment: EnvironmentSpec,
        caller: Caller,
        *,
        protocol: str,
        policy: str,
        run_id: str,
        exclusive: bool = False,
        admit: Admit,
        run: Run,
        clock: Clock,
        max_seconds: float,
        gone: Callable[[EnvironmentSession, Failure | None], None],
    ) -> None:
        self.session_id = session_id
        self.environment = environment
        self.caller = caller
        self.protocol = protocol
        self.policy = policy
        self.run_id = run_id
        self.exclusive = exclusive
        self.closed = False
        self.used_at = clock.monotonic()
        self._app = app
        self._admit = admit
        self._run = run
        self._clock = clock
        self._max_seconds = max_seconds
        self._gone = gone
        self._episode: DrivenEpisode | None = None
        self._call: SessionCall | None = None
        self._last: SessionStep | None = None
        self._leave: Callable[[str], None] | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a call is under way."""
        return self._call is not None and not self._call.done

    @property
    def state(self) -> Literal["open", "playing", "over", "closed"]:
        """`open`: no episode yet. `playing`: one is under way. `over`: it has ended, and another reset begins the next."""
        if self.closed:
            return "closed"
        if self._episode is None:
            return "open"
        return "over" if self._episode.over else "playing"

    @property
    def turn(self) -> int:
        """The number of decisions in the present episode."""
        return 0 if self._episode is None else self._episode.turn

    @property
    def rollout_id(self) -> str | None:
        """The id of the present or latest episode's rollout; None before the first."""
        rollout = self.rollout
        return None if rollout is None else rollout.rollout_id

    @property
    def rollout(self) -> RunningRollout | None:
        """The present or latest episode's rollout, whose events can be read after its end, too; None before the first."""
        return None if self._episode is None else self._episode.rollout

    @property
    def limits(self) -> dict[str, float | None]:
        """The limits of the present episode, None where there is none; empty before the first."""
        rollout = self.rollout
        if rollout is None:
            return {}
        plan = rollout.plan
        return {
            "max_turns": plan.max_turns if plan.max_turns is not None else plan.default_max_turns,
            "max_steps": plan.max_steps,
            "max_refusals": plan.max_refusals,
            "max_actions_per_step": plan.max_calls,
            "seconds_per_call": self._max_seconds,
        }

    @property
    def end(self) -> Rollout | None:
        """How the present episode ended; None while it is under way, and when it failed."""
        return None if self._last is None else self._last.end

    @property
    def failure(self) -> Failure | None:
        """What the present episode failed with; None otherwise."""
        try:
            if self._episode is not None:
                self._episode.raise_failure()
        except RolloutFailed as error:
            return error.failure
        except StoreError:
            message = "the episode was played and scored, and could not be stored"
            return Failure("scoring", "store_failed", message, "The log has the cause. It may be stored later.")
        return None

    @property
    def rewards(self) -> dict[str, float | None]:
        """What the present episode's steps added to its reward so far, by part: the sums of `SessionStep.parts`."""
        given = [] if self._episode is None else self._episode.given
        sums: dict[str, float | None] = {name: math.fsum(parts[name] for parts in given) for name in ("env", "event")}
        if self._last is not None and self._last.end is not None:
            for name, rest in self._last.parts.items():
                sums[name] = None if rest is None else (sums.get(name) or 0.0) + rest
        return sums

    def touch(self) -> None:
        """Count as used now, so that the session does not expire."""
        self.used_at = self._clock.monotonic()

    def attach(self, leave: Callable[[str], None]) -> None:
        """Let one connection drive the session. leave: called with the reason when another one does, or it is closed."""
        if self._leave is not None:
            self._leave("replaced")
        self._leave = leave

    def detach(self, leave: Callable[[str], None]) -> None:
        """End that, unless another connection took its place."""
        if self._leave == leave:  # a bound method is a new object each time
            self._leave = None

    # -- the caller's verbs ----------------------------------------------------------------------------------------

    async def reset(
        self,
        seed: int | None = None,
        *,
        split: str | None = None,
        config: Mapping[str, Json] | None = None,
        reward: Blend | None = None,
        request_id: str | None = None,
        seconds: float | None = None,
    ) -> SessionStart:
        """Begin an episode; one that is under way ends as cancelled. seed: None draws one. reward: in place of the app's.

        seconds: the time limit of this call; past it the episode fails, the session stays. The server's own applies, too.
        Raises RequestError, Unavailable, Saturated, RolloutFailed, StoreError, SessionError.
        """
        body = {
            "seed": seed,
            "split": split,
            "config": dict(config or {}),
            "reward": None if reward is None else asdict(reward),
        }
        request = self._request(seed, split, config, reward)
        start: SessionStart = await self._once(
            "reset", request_id, body, lambda call: call.run(self._begin(request, seconds))
        )
        return start

    async def step(
        self,
        actions: Sequence[tuple[str, Json]] = (),
        *,
        text: str | None = None,
        written: str | None = None,
        request_id: str | None = None,
        seconds: float | None = None,
    ) -> SessionStep:
        """Make one decision: actions as (name, arguments), or `text` where the environment takes words.

        written: in place of both, a model's words, from which the actions are read as in output mode `text`.

        An action that is refused is a step whose observation is the reason, as for a model. Raises as `reset`.
        """
        try:
            given = [(tool, plain(args, f"actions[{at}].args")) for at, (tool, args) in enumerate(actions)]
        except NotJson as error:
            message = f"an action cannot be used: {error}."
            raise RequestError(message, fields=(FieldProblem(("body", "args"), message),)) from None
        message_body = actions_message(given, text, written)
        step: SessionStep = await self._once(
            "step", request_id, message_body, partial(self._decide, message_body, seconds)
        )
        return step

    async def finish(self, *, request_id: str | None = None, seconds: float | None = None) -> SessionStep:
        """End the episode now: truncated, scored and stored. Of one that is over, return its last step again.

        Raises as `reset`; RolloutFailed of an episode that failed.
        """
        step: SessionStep = await self._once("finish", request_id, None, partial(self._finish, seconds))
        return step

    async def close(self, failure: Failure | None = None, *, at_once: bool = False) -> None:
        """Close the session, and wait until its episode is stored. A second call joins the first.

        An episode in progress ends as cancelled, or with this failure. One that has ended is scored first, unless there is
        a failure, or at_once: a repeated or impatient close loses no reward.
        """
        # First, so that no call begins while the episode is being stored.
        self.closed = True
        if self._episode is not None and (failure is not None or at_once or not self._episode.ending):
            self._episode.fail(failure or left("closed the session"))
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(failure))
        # A caller that goes away must not leave a half-closed session, which nobody would close again.
        await asyncio.shield(self._closing)

    # -- internals -------------------------------------------------------------------------------------------------

    async def _once(self, verb: str, request_id: str | None, body: Json, begin: Callable[[SessionCall], object]) -> Any:
        """Begin the call, or join the same one, and return its answer. Nothing that happens to the caller ends it."""
        if self.closed:
            raise no_such_session(self.session_id)
        # Only the latest call: an answer is as large as an observation, and a client repeats what it has no answer to.
        call = self._call
        if call is not None and request_id is not None and call.request_id == request_id:
            if (call.verb, call.body) != (verb, body):
                raise IdempotencyKeyReused(
                    f"The request_id {request_id[:80]!r} was sent before, with another request.",
                    hint="Give each call of a session a request_id of its own.",
                )
            return await self._awaited(call)
        if self.busy:
            hint = "A session takes one call at a time; wait for its answer, or open another session."
            raise SessionError("session_busy", f"A call of session {self.session_id} is under way.", hint=hint)
        self._call = call = SessionCall(verb, request_id, body)
        try:
            begin(call)
        except Exception as error:
            call.end(error=error)
        return await self._awaited(call)

    async def _awaited(self, call: SessionCall) -> Any:
        self.touch()
        try:
            return await call.answer()
        finally:
            self.touch()

    async def _begin(self, request: RolloutRequest, seconds: float | None) -> SessionStart:
        if self._episode is not None:
            self._episode.fail(left("reset the session"))
            # One episode at a time: its place is the session's, and its row is there before the next one begins.
            await self._episode.stored()
        episode = DrivenEpisode()
        try:
            rollout = await self._admit(request, self.caller)
            pause = await episode.begin(rollout, self._run)
            self._episode, self._last = episode, None
            if self.closed:
                episode.fail(left("closed the session"))
            timer = self._timer(episode, seconds, "reset")
            try:
                asked = await pause
            finally:
                timer.cancel()
        except RequestError as error:  # of the plan, or of the environment's constructor
            self._episode = None
            raise _with_own_places(error) from error.__cause__
        step = self._last = self._step_of(episode, asked)
        plan = rollout.plan
        first = asked if isinstance(asked, dict) else {"actions": [], "messages": [], "tools": []}
        return SessionStart(
            rollout_id=rollout.rollout_id,
            environment=plan.environment.name,
            split=plan.split,
            seed=plan.seed,
            observation=step.observation,
            actions=first["actions"],
            messages=first["messages"],
            tools=first["tools"],
            limits=self.limits,
            formula=self._blend(rollout).words(),
            end=step.end,
        )

    def _decide(self, message: dict[str, Json], seconds: float | None, call: SessionCall) -> None:
        episode = self._present()
        if episode.over:
            hint = "Begin the next one with a reset."
            raise SessionError("episode_over", f"The episode of session {self.session_id} has ended.", hint=hint)
        episode.turn += 1
        self._send(episode, message, seconds, call)

    def _finish(self, seconds: float | None, call: SessionCall) -> None:
        episode = self._present()
        if episode.over:
            assert self._last is not None, "an episode that did not fail has a last step"
            # A client repeats `finish` when it got no answer: the reward must not be lost with it.
            call.end(self._last)
        else:
            self._send(episode, FINISH_MESSAGE, seconds, call)

    def _send(self, episode: DrivenEpisode, message: dict[str, Json], seconds: float | None, call: SessionCall) -> None:
        """Send a decision; the call ends with the step."""
        timer = self._timer(episode, seconds, call.verb)

        def paused(pause: asyncio.Future[dict[str, Json] | Rollout]) -> None:
            timer.cancel()
            try:
                self._last = step = self._step_of(episode, pause.result())
            except BaseException as error:
                call.end(error=error)
            else:
                call.end(step)

        episode.decide(message).add_done_callback(paused)

    async def _close(self, failure: Failure | None) -> None:
        if self._episode is not None:
            await self._episode.stored()
        self._gone(self, failure)
        if self._leave is not None:
            self._leave("session_closed" if failure is None else failure.code)

    def _present(self) -> DrivenEpisode:
        """Return the present episode. Raises RolloutFailed when it failed, SessionError when there is none."""
        if self._episode is None:
            raise SessionError(
                "no_episode", f"Session {self.session_id} has no episode.", hint="Begin one with a reset."
            )
        self._episode.raise_failure()
        return self._episode

    def _timer(self, episode: DrivenEpisode, seconds: float | None, verb: str) -> asyncio.TimerHandle:
        """Start the call's time limit, at whose end the episode fails."""
        limit = self._max_seconds if seconds is None else min(seconds, self._max_seconds)
        return asyncio.get_running_loop().call_later(limit, lambda: episode.fail(too_slow(verb, limit)))

    def _step_of(self, episode: DrivenEpisode, asked: dict[str, Json] | Rollout) -> SessionStep:
        steps = episode.news()
        if not isinstance(asked, Rollout):
            parts: dict[str, float] = asked["rewards"]
            episode.given.append(parts)
            return SessionStep(episode.turn, episode.observation, steps, parts["env"] + parts["event"], parts)
        assert episode.rollout is not None, "it was played"
        blend, card = self._blend(episode.rollout), asked.scorecard
        given = {name: math.fsum(parts[name] for parts in episode.given) for name in ("env", "event")}
        rest = {
            "env": blend.env * asked.total_reward - given["env"],
            "event": _weighted(blend.event, card.events_score, given["event"]),
            "outcome": _weighted(blend.outcome, card.outcome_score, 0.0),
        }
        # The last step has what the earlier ones did not: so the sum is the rollout's reward exactly, whatever criteria
        # that read the whole episode say.
        reward = None if card.reward is None else card.reward - given["env"] - given["event"]
        return SessionStep(episode.turn, episode.observation, steps, reward, rest, asked)

    def _blend(self, rollout: RunningRollout) -> Blend:
        return rollout.plan.blend or self._app.blend_for(self.environment.name)

    def _request(
        self, seed: int | None, split: str | None, config: Mapping[str, Json] | None, reward: Blend | None
    ) -> RolloutRequest:
        # `True` is an int to Python, and a seed to nobody.
        if seed is not None and (type(seed) is not int or not 0 <= seed < SEED_LIMIT):
            message = f"seed is {str(seed)[:80]!r}; expected a whole number from 0."
            raise RequestError(message, fields=(FieldProblem(("body", "seed"), message),))
        try:
            given = plain({**(config or {}), **({} if split is None else {"split": split})}, "config")
            return RolloutRequest.model_validate(
                {
                    "run_id": self.run_id,
                    "env": {"env_name": self.environment.name, "seed": seed, "config": given},
                    "policy": {
                        "policy_name": self.policy,
                        "config": {"session_id": self.session_id, "protocol": self.protocol},
                    },
                    "ops": [],
                    "mode": "rl",
                    "reward": None if reward is None else asdict(reward),
                }
            )
        except ValueError as error:  # NotJson, and what pydantic raises
            message = f"the reset cannot be used: {error}."
            raise RequestError(message, fields=(FieldProblem(("body", "config"), message),)) from None


def no_such_session(session_id: str) -> SessionError:
    """Return the error for a session that does not exist, has ended, or belongs to another key."""
    return SessionError(
        "session_not_found",
        f"There is no session {session_id[:80]!r} of this key.",
        hint="It was closed, it expired because it was not used, or the server started anew. Open another one.",
    )


def _weighted(weight: float, score: float | None, given: float) -> float | None:
    if not weight:
        return 0.0
    return None if score is None else weight * score - given


def _with_own_places(error: RequestError) -> RequestError:
    """Return the error with places as in a reset, which has the members of a rollout's `env` at its top."""
    fields = tuple(
        replace(field, loc=("body", *field.loc[2:])) if field.loc[:2] == ("body", "env") else field
        for field in error.fields
    )
    return RequestError(error.message, fields=fields, code=error.code, hint=error.hint)
