"""One session: an environment that stays open between the calls of an outside caller, who makes the decisions.

Each episode of a session is a rollout (`Service.run`) in a separate asyncio task. The caller replaces the model: instead of
calling a model, the episode waits in `DrivenEpisode.answers` for the caller's next decision. Threads, worker processes,
limits, refusals, failures, scoring and the store therefore work as for `POST /rollout`.
"""

from __future__ import annotations

import asyncio
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
"""Admits the rollout of an episode. Raises the same errors as `Service.admit`."""


@dataclass(frozen=True, slots=True)
class SessionStep:
    """The result of one step call.

    Attributes:
        steps: The call's actions, each with its observation, info and refusal, if any.
        reward: The step's share of the episode's reward. The shares of all steps sum to the episode's reward. The last
            step's share is None if the episode's reward is undefined.
        parts: The weighted parts `env`, `event` and, in the last step, `outcome`. An undefined part is None.
        end: The finished rollout, or None while the episode is running.
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
    """The result of a reset: the episode's identity, and data for a trainer that samples its own model.

    Attributes:
        actions: Each action's name, description, parameters (JSON Schema) and `text`: whether it accepts plain text.
        messages, tools: Fields of the first request to a model, as in chat completions.
        limits: The limits by name, with None for a limit that is not set.
        formula: The reward formula as a string.
        end: The finished rollout if a limit ended the episode before its first step, or None.
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
    """One session. Create it with `EnvironmentSessions.open`, and use it on the service's event loop.

    A session runs one call at a time. A call continues if its caller is cancelled or disconnects. Repeat the call with the
    same `request_id` to get the result. Only the latest call can be repeated.

    protocol, policy (one of CALLERS), run_id: stored with the rollouts. exclusive: whether only `protocol` may drive it.
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
        """Whether a call is in progress."""
        return self._call is not None and not self._call.done

    @property
    def state(self) -> Literal["open", "playing", "over", "closed"]:
        """The state: `open` before the first episode, `playing` during an episode, `over` after an episode, or `closed`."""
        if self.closed:
            return "closed"
        if self._episode is None:
            return "open"
        return "over" if self._episode.over else "playing"

    @property
    def turn(self) -> int:
        """The number of decisions in the current episode."""
        return 0 if self._episode is None else self._episode.turn

    @property
    def rollout_id(self) -> str | None:
        """The id of the current or latest episode's rollout, or None before the first episode."""
        return None if self.rollout is None else self.rollout.rollout_id

    @property
    def rollout(self) -> RunningRollout | None:
        """The rollout of the current or latest episode, or None before the first. Its events remain readable after the end."""
        return None if self._episode is None else self._episode.rollout

    @property
    def limits(self) -> dict[str, float | None]:
        """The limits of the current episode by name, with None for a limit that is not set. Empty before the first episode."""
        if self.rollout is None:
            return {}
        plan = self.rollout.plan
        return {
            "max_turns": plan.max_turns if plan.max_turns is not None else plan.default_max_turns,
            "max_steps": plan.max_steps,
            "max_refusals": plan.max_refusals,
            "max_actions_per_step": plan.max_calls,
            "seconds_per_call": self._max_seconds,
        }

    @property
    def end(self) -> Rollout | None:
        """The finished rollout of the current episode, or None while it is running or if it failed."""
        return None if self._last is None else self._last.end

    @property
    def failure(self) -> Failure | None:
        """The failure of the current episode, or None if it has not failed."""
        try:
            if self._episode is not None:
                self._episode.raise_failure()
        except RolloutFailed as error:
            return error.failure
        except StoreError:
            message = "the episode was played and scored, but could not be stored"
            return Failure(
                "scoring", "store_failed", message, "The server's log reports the cause. The server retries the write."
            )
        return None

    @property
    def rewards(self) -> dict[str, float | None]:
        """The reward parts of the current episode so far, as sums of `SessionStep.parts`."""
        sums: dict[str, float | None] = dict.fromkeys(("env", "event"), 0.0)
        if self._episode is not None:
            sums |= self._episode.paid()
        if self._last is not None and self._last.end is not None:
            for name, rest in self._last.parts.items():
                sums[name] = None if rest is None else (sums.get(name) or 0.0) + rest
        return sums

    def touch(self) -> None:
        """Mark the session as used now, so that it does not expire."""
        self.used_at = self._clock.monotonic()

    def attach(self, leave: Callable[[str], None]) -> None:
        """Let one connection drive the session. leave: called with the reason on a takeover or when the session closes."""
        if self._leave is not None:
            self._leave("replaced")
        self._leave = leave

    def detach(self, leave: Callable[[str], None]) -> None:
        """End this connection's control of the session, unless another connection has already taken over."""
        if self._leave == leave:  # compared with ==, because a bound method is a new object each time
            self._leave = None

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
        """Begin an episode. A running episode is cancelled.

        Args:
            seed: The seed. Drawn at random by default.
            split: The split. Defaults to the environment's first split.
            config: Arguments of the environment's constructor.
            reward: A reward formula that replaces the app's formula.
            request_id: An id with which the call can be repeated.
            seconds: The time limit of this call, if it is lower than the server's limit. Exceeding it fails the episode.

        Raises SessionError if the session is closed or busy, and the errors of `Service.rollout`.
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
        """Send one decision and return its result. A refused action is a step whose observation contains the reason.

        actions: pairs of name and arguments. text: plain text, if the environment accepts it. written: a model's reply instead
        of actions and text, parsed as in output mode `text`. request_id, seconds: see `reset`. Raises the same errors as `reset`.
        """
        try:
            calls = [(tool, plain(args, f"actions[{at}].args")) for at, (tool, args) in enumerate(actions)]
        except NotJson as error:
            problem = f"The action is not JSON: {error}."
            raise RequestError(problem, fields=(FieldProblem(("body", "args"), problem),)) from None
        message = actions_message(calls, text, written)
        step: SessionStep = await self._once("step", request_id, message, partial(self._decide, message, seconds))
        return step

    async def finish(self, *, request_id: str | None = None, seconds: float | None = None) -> SessionStep:
        """Truncate, score and store the episode. If it has already ended, return the last step again.

        Raises the same errors as `reset`.
        """
        step: SessionStep = await self._once("finish", request_id, None, partial(self._finish, seconds))
        return step

    async def close(self, failure: Failure | None = None, *, at_once: bool = False) -> None:
        """Close the session, and wait until its episode is stored. A second call waits for the first.

        A running episode is cancelled, or ends with `failure`. An episode that is being scored is scored first, unless
        `failure` or `at_once` is set, so that a repeated or impatient close does not lose the reward.
        """
        # set first, so that no call begins while the episode is being stored
        self.closed = True
        if self._episode is not None and (failure is not None or at_once or not self._episode.ending):
            self._episode.fail(failure or left("closed the session"))
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(failure))
        # shielded, because no other call would close a session that is half-closed
        await asyncio.shield(self._closing)

    async def _once(self, verb: str, request_id: str | None, body: Json, begin: Callable[[SessionCall], object]) -> Any:
        """Begin the call, or join the call with the same id, and return its result. The call continues without its caller."""
        if self.closed:
            raise no_such_session(self.session_id)
        # Store only the latest call. Its result is as large as an observation, and clients only repeat unanswered calls.
        call = self._call
        if call is not None and request_id is not None and call.request_id == request_id:
            if (call.verb, call.body) != (verb, body):
                raise IdempotencyKeyReused(
                    f"The request_id {request_id[:80]!r} was already used for a different call in this session.",
                    hint="Use a new request_id for each call.",
                )
            return await self._awaited(call)
        if self.busy:
            hint = "A session runs one call at a time. Wait for that call, or open another session."
            raise SessionError("session_busy", f"Session {self.session_id} is busy with another call.", hint=hint)
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
            # wait, because a session has capacity for one episode, and rows are stored in the order of the episodes
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
        except RequestError as error:  # an error of the plan, or of the environment's constructor
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
            hint = "Reset the session to begin the next episode."
            raise SessionError("episode_over", f"The episode of session {self.session_id} has ended.", hint=hint)
        episode.turn += 1
        self._send(episode, message, seconds, call)

    def _finish(self, seconds: float | None, call: SessionCall) -> None:
        episode = self._present()
        if episode.over:
            assert self._last is not None, "an episode that did not fail has a last step"
            # a client that got no response repeats `finish` and must still get the reward
            call.end(self._last)
        else:
            self._send(episode, FINISH_MESSAGE, seconds, call)

    def _send(self, episode: DrivenEpisode, message: dict[str, Json], seconds: float | None, call: SessionCall) -> None:
        """Send a decision. The call ends when the step has ended."""
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
        """Return the current episode. Raises RolloutFailed if it failed, and SessionError before the first reset."""
        if self._episode is None:
            hint = "Reset the session to begin an episode."
            raise SessionError("no_episode", f"Session {self.session_id} has no episode.", hint=hint)
        self._episode.raise_failure()
        return self._episode

    def _timer(self, episode: DrivenEpisode, seconds: float | None, verb: str) -> asyncio.TimerHandle:
        """Start a timer for the call's time limit, after which the episode fails."""
        limit = self._max_seconds if seconds is None else min(seconds, self._max_seconds)
        return asyncio.get_running_loop().call_later(limit, lambda: episode.fail(too_slow(verb, limit)))

    def _step_of(self, episode: DrivenEpisode, asked: dict[str, Json] | Rollout) -> SessionStep:
        steps = episode.news()
        if not isinstance(asked, Rollout):
            parts: dict[str, float] = asked["rewards"]
            episode.given.append(parts)
            return SessionStep(episode.turn, episode.observation, steps, parts["env"] + parts["event"], parts)
        assert episode.rollout is not None, "it was played"
        blend, card, paid = self._blend(episode.rollout), asked.scorecard, episode.paid()
        rest = {
            "env": blend.env * asked.total_reward - paid["env"],
            "event": _weighted(blend.event, card.events_score, paid["event"]),
            "outcome": _weighted(blend.outcome, card.outcome_score, 0.0),
        }
        # The last step gets the remainder, so that the steps sum exactly to the rollout's reward. Criteria of the whole
        # episode can only be computed now.
        reward = None if card.reward is None else card.reward - paid["env"] - paid["event"]
        return SessionStep(episode.turn, episode.observation, steps, reward, rest, asked)

    def _blend(self, rollout: RunningRollout) -> Blend:
        return rollout.plan.blend or self._app.blend_for(self.environment.name)

    def _request(
        self, seed: int | None, split: str | None, config: Mapping[str, Json] | None, reward: Blend | None
    ) -> RolloutRequest:
        # not isinstance, because `True` is an int
        if seed is not None and (type(seed) is not int or not 0 <= seed < SEED_LIMIT):
            message = f"seed is {str(seed)[:80]!r}; expected an integer of at least 0."
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
        except ValueError as error:  # NotJson, or an error of pydantic
            message = f"The arguments of reset are invalid: {error}."
            raise RequestError(message, fields=(FieldProblem(("body", "config"), message),)) from None


def no_such_session(session_id: str) -> SessionError:
    """Return the error for a session that does not exist, has ended, or belongs to another key."""
    return SessionError(
        "session_not_found",
        f"This key has no open session {session_id[:80]!r}.",
        hint="The session was closed or has expired, or the server was restarted. Open another session.",
    )


def _weighted(weight: float, score: float | None, paid: float) -> float | None:
    if not weight:
        return 0.0
    return None if score is None else weight * score - paid


def _with_own_places(error: RequestError) -> RequestError:
    """Correct the error's field locations: a reset request has the fields of a rollout's `env` at its top level."""
    fields = tuple(
        replace(field, loc=("body", *field.loc[2:])) if field.loc[:2] == ("body", "env") else field
        for field in error.fields
    )
    return RequestError(error.message, fields=fields, code=error.code, hint=error.hint)
