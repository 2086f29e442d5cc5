"""One environment instance. The return values of the author's code are validated before they are recorded.

An instance runs in one thread, and the author's async methods run on the instance's own event loop. Models that the
environment calls, such as a user simulator, are never trained and are counted separately.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from taskapp_kit.declare.signature import BadArguments, finished
from taskapp_kit.declare.source_location import line_of, without_folder
from taskapp_kit.declare.specs import ActionSpec, EnvironmentSpec
from taskapp_kit.errors import Failure, FieldProblem, InvalidAction, KitError, RequestError, Unavailable
from taskapp_kit.records.content import Content, Image, Json, NotJson, content, plain, without_surrogates
from taskapp_kit.records.protocols import Tool
from taskapp_kit.records.seeds import derived_rng
from taskapp_kit.records.trajectory import Step
from taskapp_kit.rollout.episode.plan import EpisodePlan
from taskapp_kit.wire.chat.conversation import ChatReply, ModelFailed, ModelPort


def unknown_tool(name: str, tools: Iterable[str], *, declared: bool) -> str:
    """Return the message that refuses a call of a tool that this episode lacks. declared: whether the environment has it."""
    known = ", ".join(tools)
    if not name:
        return f"Nothing was done: answer with a tool call. The tools are: {known}."
    where = "in this episode" if declared else "here"
    return f"Nothing was done: there is no tool {name[:80]!r} {where}. The tools are: {known}."


def bad_arguments(name: str, error: BadArguments) -> str:
    """Return the message that refuses a call whose arguments the action does not accept."""
    return f"{name} was not done: {error}."


def too_many_calls(most: int) -> str:
    """Return the message that refuses the first call beyond the limit on calls in one reply, and all calls after it."""
    return f"This was not done, nor what follows it: an answer may hold at most {most} calls."


P = ParamSpec("P")
T = TypeVar("T")


class EnvironmentProblem(Exception):
    """The author's environment returned a value that cannot be recorded. `code` is a stable error code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class ConfigRefused(RequestError):
    """The environment's constructor raised ValueError, so the caller's env.config is invalid."""


class EnvironmentLeft(Exception):
    """Replaces a GeneratorExit (`__cause__`) that the author's code raised and that would close the episode's generator."""


def _authors(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method that runs the author's code, so that a GeneratorExit in it does not close the episode."""

    @functools.wraps(method)
    def call(*given: P.args, **named: P.kwargs) -> T:
        try:
            return method(*given, **named)
        # a GeneratorExit of the author would look as if the driver had closed the episode
        except GeneratorExit as error:
            raise EnvironmentLeft from error

    return call


class Context:
    """The argument of `reset(context)`.

    rng: a generator seeded with environment, split and seed. log: a logger with the environment's name. wants_images:
    whether images will be used. path(name): the path of a file next to the author's file.
    """

    def __init__(self, plan: EpisodePlan, auxiliary: AuxiliaryModels) -> None:
        self._auxiliary = auxiliary
        self.rng = derived_rng("environment", plan.environment.name, plan.split, plan.seed)
        self.log = logging.getLogger(f"taskapp_kit.environment.{plan.environment.name}")
        self.wants_images = plan.wants_images
        self._folder = plan.folder

    def path(self, name: str | Path) -> Path:
        """Return the path of a file next to the author's file."""
        return self._folder / name

    def model(self, role: str) -> AuxiliaryModel:
        """Return the model with this role, such as a user simulator. The server's variable TASKAPP_{ROLE}_URL configures it."""
        return self._auxiliary.model(role)


_prepared: set[type] = set()
# Rollouts of one environment may begin in several threads at once, and `setup_worker` may load gigabytes.
_preparing = threading.Lock()


def prepare(spec: EnvironmentSpec) -> None:
    """Run the environment's `setup_worker` once per process. Raises the exceptions of `setup_worker`."""
    if not spec.has_setup_worker or spec.cls in _prepared:
        return
    with _preparing:
        if spec.cls in _prepared:
            return
        finished(spec.cls.setup_worker())  # type: ignore[attr-defined]
        # the new objects are permanent, so full collections need not traverse them (12 % of Crafter's CPU time)
        gc.collect()
        gc.freeze()
        _prepared.add(spec.cls)


def prepare_to_serve(spec: EnvironmentSpec) -> None:
    """Run `prepare` before the first request. Raises Unavailable, with the error's message, if `setup_worker` raises."""
    try:
        prepare(spec)
    except KitError:
        raise
    except Exception as error:
        raise Unavailable(
            f"Environment {spec.name!r} cannot be prepared: {spec.cls.__name__}.setup_worker raised "
            f"{type(error).__name__}: {error}.",
            hint="Fix setup_worker, or install its requirements.",
        ) from error


class EnvironmentHost:
    """An instance of an author's environment, from construction to `close`."""

    def __init__(self, plan: EpisodePlan, models: ModelPort | None = None) -> None:
        self.plan = plan
        self._auxiliary = AuxiliaryModels(models)
        self.spec: EnvironmentSpec = plan.environment
        # All calls of the instance use one loop, because a connection opened in reset belongs to the loop that opened it.
        self._runner = asyncio.Runner()  # creates the loop at the first call
        self._last_observation: Any = None
        self._last_info: Any = None
        self.instance: Any = None

    @_authors
    def reset(self) -> Content:
        """Create and reset the instance, and return the first observation."""
        plan, spec = self.plan, self.spec
        prepare(spec)
        try:
            self.instance = spec.cls(**plan.arguments)
        except ValueError as error:  # an author rejects the caller's env.config with ValueError
            message = f"Environment {spec.name!r} rejects this env.config: {error}."
            raise ConfigRefused(
                message, fields=(FieldProblem(("body", "env", "config"), message, "bad_config"),), code="bad_config"
            ) from error
        given: dict[str, Any] = {}
        for name in spec.reset_parameters:
            if name == "seed":
                given[name] = plan.seed
            elif name == "task":
                given[name] = plan.task
            elif name == "split":
                given[name] = plan.split
            else:
                given[name] = Context(plan, self._auxiliary)
        first = self._finish(self.instance.reset(**given))
        # a Step would have a reward that no action earned
        if isinstance(first, Step):
            raise EnvironmentProblem(
                "reset_returned_step", f"{spec.cls.__name__}.reset returned a Step, expected only the first observation"
            )
        self._last_observation = first
        return self._content(first, "reset")

    @_authors
    def tools(self) -> list[Tool]:
        """Return the tools of this episode: all actions, or the actions that the environment's `actions()` returns."""
        spec = self.spec
        if not spec.has_actions:
            return [action.tool for action in spec.actions.values()]
        result = []
        for item in self._finish(self.instance.actions()):
            name = str(item if isinstance(item, str) else getattr(item, "name", item))
            if name not in spec.actions:
                raise EnvironmentProblem(
                    "unknown_action",
                    f"{spec.cls.__name__}.actions() names the unknown action {name!r}, expected one of {', '.join(spec.actions)}",
                )
            result.append(item if isinstance(item, Tool) else spec.actions[name].tool)
        if not result:
            raise EnvironmentProblem("no_action", f"{spec.cls.__name__}.actions() must return at least one action")
        return result

    @_authors
    def act(self, action: ActionSpec, arguments: dict[str, Any]) -> tuple[Step, Content]:
        """Run one action. Return the author's Step after validation, and the observation as recorded content.

        Raises EnvironmentProblem if the result cannot be recorded, and all exceptions of the author's code, such as
        InvalidAction.
        """
        returned = self._finish(getattr(self.instance, action.method)(**arguments))
        step = returned if isinstance(returned, Step) else Step(returned)
        given = step.observation
        observation = self._content(given, action.name)
        if type(given) is not str and given is not None:
            # Observations are recorded by reference, so the earlier step would show the later state. Copying each
            # observation would slow down every environment that returns new objects.
            if (
                given is self._last_observation
                and type(observation) is not str
                and not isinstance(given, (tuple, Image))
            ):
                raise self._shared("observation", given, action.name)
            self._last_observation = given
        if step.info:
            if step.info is self._last_info:
                raise self._shared("info", step.info, action.name)
            self._last_info = step.info
        return self._checked(step, action.name), observation

    def cost_of(self, refusal: InvalidAction, where: str) -> float | None:
        """Return the reward of an action that the environment rejected, or None. Raises EnvironmentProblem if it is invalid."""
        reward = self._checked(Step(None, refusal.reward), where).reward
        if reward is not None and reward > 0:
            message = f"{self._named(where)}: the reward {reward} of a rejected action is above 0, the highest that is allowed"
            raise EnvironmentProblem("reward_out_of_range", message)
        return reward

    @_authors
    def final_state(self) -> Json:
        """Return the environment's private final state as JSON, or None if the environment does not define one."""
        if not self.spec.has_final_state or self.instance is None:
            return None
        state = self._finish(self.instance.final_state())
        try:
            return plain(state, "final_state")
        except NotJson as error:
            raise EnvironmentProblem("final_state_not_json", f"{self._named('final_state')}: {error}") from None

    @_authors
    def close(self) -> None:
        """Close the instance, if it exists, and the event loop of its async methods. A second call is allowed."""
        instance, self.instance = self.instance, None
        try:
            if instance is not None and self.spec.has_close:
                self._finish(instance.close())
        # a new runner, because `close` may be called again after it failed
        finally:
            self._runner.close()
            self._runner = asyncio.Runner()

    @property
    def auxiliary(self) -> AuxiliaryModels:
        """The models that the environment calls."""
        return self._auxiliary

    # -- validation -----------------------------------------------------------------------------------------------

    def _finish(self, value: Any) -> Any:
        """Return a method's return value. A coroutine is first run to its end on the instance's event loop."""
        return value if type(value) is Step else finished(value, self._runner)

    def _content(self, value: Any, where: str) -> Content:
        try:
            return content(value)
        except NotJson as error:
            raise EnvironmentProblem(
                "observation_not_json",
                f"{self._named(where)}: {error}; an observation must be JSON with finite numbers, or Text and Image objects",
            ) from None

    def _named(self, where: str) -> str:
        """Return the method and its source line without the directory, such as `Game.go (game.py:21)`."""
        cls, action = self.spec.cls, self.spec.actions.get(where)
        place = action.place if action is not None else line_of(getattr(cls, where, None), self.spec.place)
        return f"{cls.__name__}.{where} ({without_folder(place)})"

    def _shared(self, what: str, value: Any, where: str) -> EnvironmentProblem:
        """Return the error for a mutable object that two steps share. The first step would show the second step's state."""
        return EnvironmentProblem(
            "shared_object",
            f"{self._named(where)}: the {what} is the {type(value).__name__} object that the previous step "
            "returned, so a change to it would also change that step; return a copy in each step",
        )

    def _checked(self, step: Step, where: str) -> Step:
        """Return the step with plain JSON info and real booleans. A changed step is a copy without the observation.

        Raises EnvironmentProblem if a value is invalid.
        """
        reward = step.reward
        # This condition covers the usual step quickly. An episode may have thousands of steps.
        if (
            (reward is None or (type(reward) is float and reward - reward == 0.0))  # finite
            and type(step.terminated) is bool
            and type(step.truncated) is bool
            and not step.info
            and not step.metrics
            and (reward is None or self.spec.reward_range is None)
        ):
            return (
                step
                if type(step.info) is dict is type(step.metrics)
                else Step(None, reward, step.terminated, step.truncated)
            )
        named = self._named(where)
        if reward is not None:
            if type(reward) is not float:
                reward = _real(reward, f"{named}: the reward")
            if not math.isfinite(reward):
                raise EnvironmentProblem("reward_not_finite", f"{named}: the reward is {reward}, which is not finite")
            bounds = self.spec.reward_range
            if bounds is not None and not bounds[0] <= reward <= bounds[1]:
                raise EnvironmentProblem(
                    "reward_out_of_range",
                    f"{named}: the reward {reward} is outside the declared reward_range, {bounds[0]} to {bounds[1]}",
                )
        terminated: Any = step.terminated
        truncated: Any = step.truncated
        if type(terminated) is not bool:
            terminated = _flag(terminated, f"{named}: terminated")
        if type(truncated) is not bool:
            truncated = _flag(truncated, f"{named}: truncated")
        info: Any = step.info
        metrics: Any = step.metrics
        if info or metrics:
            try:
                info = plain(info, "info")
            except NotJson as error:
                raise EnvironmentProblem("info_not_json", f"{named}: {error}") from None
            if not isinstance(info, dict):
                raise EnvironmentProblem("info_not_json", f"{named}: info is a {type(info).__name__}, expected a dict")
            if not isinstance(metrics, Mapping):
                kind = type(metrics).__name__
                raise EnvironmentProblem("not_a_number", f"{named}: metrics is a {kind}, expected a dict of numbers")
            metrics = {_name(key): _number(value, f"{named}: metric {key!r}") for key, value in metrics.items()}
        return Step(None, reward, terminated, truncated, info or {}, metrics or {})


def _name(key: Any) -> str:
    """Return the metric's name as a string that can be recorded."""
    return without_surrogates(str(key))


def _flag(value: Any, what: str) -> bool:
    """Convert a Python or numpy boolean to a bool. Raises EnvironmentProblem for other values."""
    if type(value).__name__ not in ("bool", "bool_"):
        raise EnvironmentProblem("flag_not_bool", f"{what} is {value!r}, expected True or False")
    return bool(value)


def _number(value: Any, what: str) -> float:
    """Convert a value to a finite float. Raises EnvironmentProblem if that is not possible."""
    number = _real(value, what)
    if not math.isfinite(number):
        raise EnvironmentProblem("not_a_number", f"{what} is {number}, expected a finite number")
    return number


def _real(value: Any, what: str) -> float:
    """Convert a value to a float, which may be infinite or NaN. Raises EnvironmentProblem if it is not a number."""
    try:
        if not isinstance(value, (str, bytes, Sequence)):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise EnvironmentProblem("not_a_number", f"{what} is {str(value)[:80]!r}, expected a finite number")


class AuxiliaryModelFailed(KitError):
    """A model that the environment called did not reply. `failure` is the rollout's failure, at boundary `environment`."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message, hint=failure.hint)
        self.failure = failure


class NoAuxiliaryModel(Unavailable):
    """The environment called a model with a role for which no model is configured.

    `failure` is the rollout's failure, at boundary `environment`.
    """

    def __init__(self, role: str, missing: Unavailable) -> None:
        super().__init__(missing.message, hint=missing.hint)
        message = f"context.model({role!r}): {missing.message}"
        self.failure = Failure("environment", "auxiliary_model_not_configured", message, missing.hint)


def auxiliary_failure(error: BaseException) -> Failure | None:
    """Return the failure of an auxiliary model that caused `error` in the author's code, or None for another cause."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, AuxiliaryModelFailed | NoAuxiliaryModel):
            return cause.failure
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None


class AuxiliaryModels:
    """The models that the environment calls in one episode. spent: `calls_ROLE` and `tokens_ROLE`, for the metrics.

    calls: one dict for each call with `role`, `model`, `messages` (the messages that are new for this role), `reply`,
    `usage`, `seconds`, `attempts` and `cost`. Private values are included.
    """

    def __init__(self, port: ModelPort | None) -> None:
        self._port = port
        self.spent: dict[str, float] = {}
        self.calls: list[dict[str, Json]] = []
        self._known: dict[str, list[Json]] = {}

    def model(self, role: str) -> AuxiliaryModel:
        """Return the model with this role."""
        return AuxiliaryModel(role, self)

    def ask(self, role: str, body: dict[str, Json]) -> ChatReply:
        """Return one reply. Raises NoAuxiliaryModel if no model has the role, and AuxiliaryModelFailed if the call failed."""
        try:
            if self._port is None:
                raise Unavailable("This episode runs without models.", hint="Play the app with `taskapp rollout`.")
            reply = self._port.ask(role, body)
        except Unavailable as missing:
            raise NoAuxiliaryModel(role, missing) from None
        except ModelFailed as failed:
            failure = failed.failure
            if failure.boundary not in ("timeout", "cancelled"):  # a failure of the model, not of the rollout
                message = f"The environment could not call the model with the role {role!r}: {failure.message}"
                failure = Failure("environment", "auxiliary_model_failed", message, failure.hint)
            raise AuxiliaryModelFailed(failure) from None
        for name, amount in ((f"calls_{role}", 1.0), (f"tokens_{role}", reply.tokens)):
            self.spent[name] = self.spent.get(name, 0.0) + amount
        self._record(role, body, reply)
        return reply

    def _record(self, role: str, body: dict[str, Json], reply: ChatReply) -> None:
        sent, known = body["messages"], self._known.get(role, [])
        fresh = sent[len(known) :] if sent[: len(known)] == known else sent
        self._known[role] = [*sent, reply.message]
        self.calls.append(
            {
                "role": role,
                "model": reply.model,
                "messages": fresh,
                "reply": reply.message,
                "usage": reply.usage,
                "seconds": reply.seconds,
                "attempts": reply.attempts,
                "cost": reply.cost,
            }
        )


class AuxiliaryModel:
    """A model that the environment can call, returned by `context.model(role)`."""

    def __init__(self, role: str, models: AuxiliaryModels) -> None:
        self.role = role
        self._models = models

    def ask(self, messages: Sequence[dict[str, Any]], **sampling: Any) -> ChatReply:
        """Return one reply to a conversation, and block until it arrives. Use `chat` in async environments.

        Args:
            messages: The conversation, such as `[{"role": "user", "content": …}, …]`.
            **sampling: Additional fields of the chat-completions request, such as `temperature` or `max_tokens`.

        Raises:
            AuxiliaryModelFailed: The model did not reply.
            Unavailable: No model has this role.
            ValueError: A message or a sampling field is not JSON.
        """
        try:
            body = plain({**sampling, "messages": list(messages)}, "request")
        except NotJson as error:
            raise ValueError(f"context.model({self.role!r}): {error}") from None
        assert isinstance(body, dict), "a dict stays one"
        return self._models.ask(self.role, body)

    async def chat(self, messages: Sequence[dict[str, Any]], **sampling: Any) -> ChatReply:
        """Return one reply like `ask`, for async environments. Await each call before you start the next."""
        return self.ask(messages, **sampling)
