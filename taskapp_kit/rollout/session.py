"""One session: an environment held open between the calls of a caller who decides from outside.

Each episode of a session is a rollout (`Service.run`) in a task of its own, with the caller in the model's place: wherever
the policy would ask its model, the episode waits in `DrivenEpisode.answers` until the next call. So threads, worker
processes, limits, refusals, failures, scoring and the store are those of `POST /rollout`.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
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
from taskapp_kit.records.events import EpisodeEnded, Event, Observed, Stepped
from taskapp_kit.records.protocols import Clock
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.records.scorecard import Blend
from taskapp_kit.records.seeds import SEED_LIMIT
from taskapp_kit.records.trajectory import PlayedStep
from taskapp_kit.rollout.in_flight import Answers, Caller, InFlightRollout, Listener, cancelled
from taskapp_kit.rollout.policy.caller import FINISH_MESSAGE, actions_message
from taskapp_kit.wire.chat.conversation import ChatReply
from taskapp_kit.wire.rollout import RolloutRequest

Admit = Callable[[RolloutRequest, Caller], Awaitable[InFlightRollout]]
"""Admits the rollout of an episode. Raises as `Service.admit`."""
Run = Callable[[InFlightRollout, Listener, Answers], Awaitable[Rollout]]
"""Runs an admitted one to its stored end. Raises as `Service.run`."""
MAX_JOINED = 8
"""Requests that may wait for the answer of one call: a client that repeats it gave up the others."""


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


class DrivenEpisode:
    """An episode under way, from the caller's side.

    `begin` starts its task and `decide` sends a decision; both return a future of the episode's next pause: what the policy
    asks, or the scored rollout; or with the exception that ended the episode.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.Future[dict[str, Json] | Rollout] = self._loop.create_future()
        self._reply: asyncio.Future[ChatReply] | None = None
        self._task: asyncio.Task[Rollout] | None = None
        self._ended_with: Rollout | BaseException | None = None
        self._heard: list[Event] = []
        self.rollout: InFlightRollout | None = None
        self.observation: Content = None
        self.given: list[dict[str, float]] = []
        self.turn = 0
        self.ending = False  # nothing more is played: what is left is to score and store it

    async def answers(self, body: dict[str, Json]) -> ChatReply:
        """Receive what the policy asks, and wait for the caller. On the event loop."""
        self._reply = self._loop.create_future()
        if not self._pause.done():
            self._pause.set_result(body)
        return await self._reply

    def hear(self, event: Event) -> None:
        """Receive the episode's events; a Listener, in the environment's thread or on the event loop."""
        kind = type(event)
        if kind is Stepped or kind is Observed:
            self._heard.append(event)
        elif kind is EpisodeEnded:
            self.ending = True

    def news(self) -> list[PlayedStep]:
        """Return the steps since the last pause, and set `observation` to the newest."""
        heard, self._heard = self._heard, []
        steps = []
        for event in heard:
            if isinstance(event, Stepped):
                steps.append(event.step)
                self.observation = event.step.observation
            elif isinstance(event, Observed):
                self.observation = event.observation
        return steps

    async def begin(self, rollout: InFlightRollout, run: Run) -> asyncio.Future[dict[str, Json] | Rollout]:
        """Start the episode's task; once this returns, it may be cancelled without leaving the rollout admitted."""
        self.rollout = rollout

        async def played() -> Rollout:
            return await run(rollout, self.hear, self.answers)

        self._task = asyncio.create_task(played())
        self._task.add_done_callback(self._ended)
        await asyncio.sleep(0)
        return self._pause

    @property
    def over(self) -> bool:
        """Whether the episode has ended."""
        return self._ended_with is not None or (self._task is not None and self._task.done())

    def decide(self, message: dict[str, Json]) -> asyncio.Future[dict[str, Json] | Rollout]:
        """Send a decision to an episode that has not ended."""
        assert self._reply is not None, "the episode waits"
        assert self.rollout is not None, "it was begun"
        self.ending = message is FINISH_MESSAGE
        self._pause = pause = self._loop.create_future()
        if self._reply.done():  # the episode was stopped, and its failure is being stored
            return pause
        reply = ChatReply(message)

        def asked(body: dict[str, Json] | None) -> None:
            if body is not None and not pause.done():
                pause.set_result(body)
            elif body is None and self._reply is not None and not self._reply.done():
                self._reply.set_result(reply)

        if self.rollout.driver is None or not self.rollout.driver.quick(reply, asked):
            self._reply.set_result(reply)
        return pause

    def fail(self, failure: Failure) -> None:
        """End the episode with this failure, unless its result is being stored."""
        rollout, task = self.rollout, self._task
        if rollout is None or task is None or rollout.settling or rollout.stopped is not None:
            return
        rollout.stopped = failure
        task.cancel()

    def raise_failure(self) -> None:
        """Raise what ended the episode, unless it was scored or has not ended."""
        if self._task is not None and self._task.done():  # and its callback has not run yet
            self._ended(self._task)
        if isinstance(self._ended_with, BaseException):
            raise _again(self._ended_with)

    async def stored(self) -> None:
        """Wait until the episode has ended and is stored."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    def _ended(self, task: asyncio.Task[Rollout]) -> None:
        """Hold how it ended, and nothing that refers back to this object: sessions leave no work to the collector."""
        if self._task is None:
            return
        self._task = None
        rollout = self.rollout
        if task.cancelled():
            self._ended_with = RolloutFailed(cancelled(), rollout_id="" if rollout is None else rollout.rollout_id)
        else:
            error = task.exception()
            self._ended_with = task.result() if error is None else _again(error)
        if self._pause.done():
            return
        if isinstance(self._ended_with, BaseException):
            self._pause.set_exception(_again(self._ended_with))
        else:
            self._pause.set_result(self._ended_with)


class SessionCall:
    """A call whose answer is returned again to those who repeat it; few of them may wait for it."""

    __slots__ = ("_error", "_result", "_waiting", "body", "done", "request_id", "task", "verb")

    def __init__(self, verb: str, request_id: str | None, body: Json) -> None:
        self.verb = verb
        self.request_id = request_id
        self.body = body
        self.done = False
        self.task: asyncio.Task[Any] | None = None
        self._result: Any = None
        self._error: BaseException | None = None
        self._waiting: list[asyncio.Future[None]] = []

    def end(self, result: Any = None, error: BaseException | None = None) -> None:
        """Set the answer, and wake those who wait for it."""
        self.done, self._result, self._error = True, result, error
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    def run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run the call as a task, and return that."""
        self.task = asyncio.create_task(work)
        self.task.add_done_callback(self._ended)
        return self.task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self.end(None if error is not None else task.result(), error)

    async def answer(self) -> Any:
        """Wait for the answer and return it, or raise it. May be cancelled, which does not end the call."""
        if not self.done:
            if len(self._waiting) >= MAX_JOINED:
                raise SessionError("session_busy", f"{MAX_JOINED} requests wait for the answer of this call already.",
                                   hint="Wait for an answer before the request is repeated.")  # fmt: skip
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting
        if self._error is not None:
            raise self._error
        return self._result


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
    def rollout(self) -> InFlightRollout | None:
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
            return Failure("scoring", "store_failed", "the episode was played and scored, and could not be stored",
                           "The log has the cause. It may be stored later.")  # fmt: skip
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
        start: SessionStart = await self._once("reset", request_id, body, partial(self._reset, request, seconds))
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
        self.closed = True
        if self._episode is not None and (failure is not None or at_once or not self._episode.ending):
            self._episode.fail(failure or _left("closed the session"))
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(failure))
        await asyncio.shield(self._closing)

    # -- internals -------------------------------------------------------------------------------------------------

    async def _once(self, verb: str, request_id: str | None, body: Json, begin: Callable[[SessionCall], None]) -> Any:
        """Begin the call, or join the same one, and return its answer. Nothing that happens to the caller ends it."""
        if self.closed:
            raise no_such_session(self.session_id)
        call = self._call
        if call is not None and request_id is not None and call.request_id == request_id:
            if (call.verb, call.body) != (verb, body):
                raise IdempotencyKeyReused(
                    f"The request_id {request_id[:80]!r} was sent before, with another request.",
                    hint="Give each call of a session a request_id of its own.",
                )
            return await self._awaited(call)
        if self.busy:
            raise SessionError(
                "session_busy", f"A call of session {self.session_id} is under way.",
                hint="A session takes one call at a time; wait for its answer, or open another session.",
            )  # fmt: skip

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

    def _reset(self, request: RolloutRequest, seconds: float | None, call: SessionCall) -> None:
        call.run(self._begin(request, seconds))

    async def _begin(self, request: RolloutRequest, seconds: float | None) -> SessionStart:
        if self._episode is not None:
            self._episode.fail(_left("reset the session"))
            await self._episode.stored()
        episode = DrivenEpisode()
        try:
            rollout = await self._admit(request, self.caller)
            pause = await episode.begin(rollout, self._run)
            self._episode, self._last = episode, None
            if self.closed:
                episode.fail(_left("closed the session"))
            asked = await self._paused(episode, pause, seconds, "reset")
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
            raise SessionError(
                "episode_over", f"The episode of session {self.session_id} has ended.",
                hint="Begin the next one with a reset.",
            )  # fmt: skip
        episode.turn += 1
        self._send(episode, message, seconds, call)

    def _finish(self, seconds: float | None, call: SessionCall) -> None:
        episode = self._present()
        if episode.over:
            assert self._last is not None, "an episode that did not fail has a last step"
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

    async def _paused(
        self,
        episode: DrivenEpisode,
        pause: asyncio.Future[dict[str, Json] | Rollout],
        seconds: float | None,
        verb: str,
    ) -> dict[str, Json] | Rollout:
        """Wait for the episode's next pause; past the call's time limit the episode fails."""
        timer = self._timer(episode, seconds, verb)
        try:
            return await pause
        finally:
            timer.cancel()

    def _timer(self, episode: DrivenEpisode, seconds: float | None, verb: str) -> asyncio.TimerHandle:
        limit = self._max_seconds if seconds is None else min(seconds, self._max_seconds)
        return asyncio.get_running_loop().call_later(limit, lambda: episode.fail(_too_slow(verb, limit)))

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
        reward = None if card.reward is None else card.reward - given["env"] - given["event"]
        return SessionStep(episode.turn, episode.observation, steps, reward, rest, asked)

    def _blend(self, rollout: InFlightRollout) -> Blend:
        return rollout.plan.blend or self._app.blend_for(self.environment.name)

    def _request(
        self, seed: int | None, split: str | None, config: Mapping[str, Json] | None, reward: Blend | None
    ) -> RolloutRequest:
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


def _again(error: BaseException) -> BaseException:
    """Return the failure for another call, which raises one of its own, with its own traceback."""
    if not isinstance(error, RolloutFailed):
        return error
    again = RolloutFailed(error.failure, rollout_id=error.rollout_id)
    again.__cause__ = error.__cause__
    return again


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


def _left(what: str) -> Failure:
    return Failure(
        "cancelled", "session_left", f"the caller {what} before the episode ended", error_id=uuid.uuid4().hex[:12]
    )


def _too_slow(verb: str, seconds: float) -> Failure:
    return Failure(
        "timeout",
        "step_timeout",
        f"the session's {verb} did not end within its time limit of {seconds:g} s",
        "Give the call more time, or the environment's own calls a time limit.",
        error_id=uuid.uuid4().hex[:12],
    )


def _with_own_places(error: RequestError) -> RequestError:
    """Return the error with places as in a reset, which has the members of a rollout's `env` at its top."""
    fields = tuple(
        replace(field, loc=("body", *field.loc[2:])) if field.loc[:2] == ("body", "env") else field
        for field in error.fields
    )
    return RequestError(error.message, fields=fields, code=error.code, hint=error.hint)
