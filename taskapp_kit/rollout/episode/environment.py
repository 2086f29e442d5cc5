"""One environment instance; everything that its author's code returns is validated before it is recorded.

All of it runs in one thread. Async methods of the author run on an event loop of this instance. The models that an
environment calls itself, such as a user simulator, are never trained, and are counted separately.
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
from taskapp_kit.errors import Failure, FieldProblem, KitError, RequestError, Unavailable
from taskapp_kit.records.content import Content, Image, Json, NotJson, content, plain, without_surrogates
from taskapp_kit.records.protocols import Tool
from taskapp_kit.records.seeds import derived_rng
from taskapp_kit.records.trajectory import Step
from taskapp_kit.rollout.episode.plan import EpisodePlan
from taskapp_kit.wire.chat.conversation import ChatReply, ModelFailed, ModelPort


def unknown_tool(name: str, tools: Iterable[str], *, declared: bool) -> str:
    """Return the refusal of a call of no tool of this episode. declared: it is an action, but not available here."""
    known = ", ".join(tools)
    if not name:
        return f"Nothing was done: answer with a tool call. The tools are: {known}."
    where = "in this episode" if declared else "here"
    return f"Nothing was done: there is no tool {name[:80]!r} {where}. The tools are: {known}."


def bad_arguments(name: str, error: BadArguments) -> str:
    """Return the refusal of a call whose arguments the action does not take."""
    return f"{name} was not done: {error}."


def too_many_calls(most: int) -> str:
    """Return the refusal of a call beyond the limit of its answer, and of all after it."""
    return f"This was not done, nor what follows it: an answer may hold at most {most} calls."


P = ParamSpec("P")
T = TypeVar("T")


class EnvironmentProblem(Exception):
    """The author's environment returned something that cannot be recorded. `code` is stable."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class ConfigRefused(RequestError):
    """The constructor raised ValueError: the caller's env.config is invalid."""


class EnvironmentLeft(Exception):
    """The author's code raised GeneratorExit (`__cause__`), which would otherwise close the episode's generator."""


def _authors(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method that runs author's code, so that its exceptions are not taken for the closing of the episode."""

    @functools.wraps(method)
    def call(*given: P.args, **named: P.kwargs) -> T:
        try:
            return method(*given, **named)
        # Raised inside the generator by the author, it would look as if the driver had closed the episode.
        except GeneratorExit as error:
            raise EnvironmentLeft from error

    return call


class Context:
    """The argument of `reset(context)`.

    rng: seeded by environment, split and seed. log: a logger of the environment's name. wants_images: False when images
    will not be used. path(name): a file next to the author's file.
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
        """Return an auxiliary model, such as a user simulator: the server's setting TASKAPP_{ROLE}_URL names it."""
        return self._auxiliary.model(role)


_prepared: set[type] = set()
# Rollouts of one environment begin in several threads at once; `setup_worker` may load gigabytes.
_preparing = threading.Lock()


def prepare(spec: EnvironmentSpec) -> None:
    """Run the environment's `setup_worker`, once per process. Raises what it raises."""
    if not spec.has_setup_worker or spec.cls in _prepared:
        return
    with _preparing:
        if spec.cls in _prepared:
            return
        finished(spec.cls.setup_worker())  # type: ignore[attr-defined]
        # its objects are permanent: full collections need not traverse them (Crafter: 12 % of its CPU)
        gc.collect()
        gc.freeze()
        _prepared.add(spec.cls)


def prepare_to_serve(spec: EnvironmentSpec) -> None:
    """Run `prepare` before the first request: raises Unavailable with the error's text, for the operator."""
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
        # One loop for all calls of the instance: what an async reset opens belongs to the loop that opened it.
        self._runner = asyncio.Runner()  # creates its loop with the first call
        self._last_observation: Any = None
        self._last_info: Any = None
        self._instance: Any = None

    @_authors
    def reset(self) -> Content:
        """Create and reset the instance; return the first observation."""
        plan, spec = self.plan, self.spec
        prepare(spec)
        try:
            self._instance = spec.cls(**plan.arguments)
        except ValueError as error:  # how an author rejects the caller's env.config
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
        first = self._finish(self._instance.reset(**given))
        # A Step of reset would have a reward that no action earned.
        if isinstance(first, Step):
            raise EnvironmentProblem(
                "reset_returned_step", f"{spec.cls.__name__}.reset returned a Step, expected only the first observation"
            )
        self._last_observation = first
        return self._content(first, "reset")

    @_authors
    def tools(self) -> list[Tool]:
        """Return the tools of this episode: all actions, or those that the environment's `actions()` names."""
        spec = self.spec
        if not spec.has_actions:
            return [action.tool for action in spec.actions.values()]
        result = []
        for item in self._finish(self._instance.actions()):
            name = str(item if isinstance(item, str) else getattr(item, "name", item))
            if name not in spec.actions:
                raise EnvironmentProblem(
                    "unknown_action",
                    f"{spec.cls.__name__}.actions() names the unknown action {name!r}, expected one of {', '.join(spec.actions)}",
                )
            result.append(item if isinstance(item, Tool) else spec.actions[name].tool)
        if not result:
            raise EnvironmentProblem(
                "no_action", f"{spec.cls.__name__}.actions() is empty, expected at least one action"
            )
        return result

    @_authors
    def act(self, action: ActionSpec, arguments: dict[str, Any]) -> tuple[Step, Content]:
        """Run one action; return the author's Step, validated, and its observation as recorded content.

        Raises InvalidAction from the author, EnvironmentProblem for what cannot be recorded, and whatever else the
        author's code raises.
        """
        returned = self._finish(getattr(self._instance, action.method)(**arguments))
        step = returned if isinstance(returned, Step) else Step(returned)
        given = step.observation
        observation = self._content(given, action.name)
        if type(given) is not str and given is not None:
            # Recorded by reference, the earlier step would show the later one's state; a copy of each observation would
            # cost every author who does it right.
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

    @_authors
    def final_state(self) -> Json:
        """Return the environment's private end state as JSON, None if it declares none."""
        if not self.spec.has_final_state or self._instance is None:
            return None
        state = self._finish(self._instance.final_state())
        try:
            return plain(state, "final_state")
        except NotJson as error:
            raise EnvironmentProblem("final_state_not_json", f"{self._named('final_state')}: {error}") from None

    @_authors
    def close(self) -> None:
        """Close the instance, if it exists, and the event loop of its async methods. May be called twice."""
        instance, self._instance = self._instance, None
        try:
            if instance is not None and self.spec.has_close:
                self._finish(instance.close())
        # A new one, because `close` may be called again after a failure in it.
        finally:
            self._runner.close()
            self._runner = asyncio.Runner()

    @property
    def auxiliary(self) -> AuxiliaryModels:
        """The models that the environment calls itself."""
        return self._auxiliary

    # -- validation -----------------------------------------------------------------------------------------------

    def _finish(self, value: Any) -> Any:
        """Return the value, or the result of an async method, all of which run on one event loop."""
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
        """Return the method and its source line, in a form that callers may see: `Game.go (game.py:21)`."""
        cls, action = self.spec.cls, self.spec.actions.get(where)
        place = action.place if action is not None else line_of(getattr(cls, where, None), self.spec.place)
        return f"{cls.__name__}.{where} ({without_folder(place)})"

    def _shared(self, what: str, value: Any, where: str) -> EnvironmentProblem:
        """Return the error for a mutable object that occurs at two steps: the first step would show the second's state."""
        return EnvironmentProblem(
            "shared_object",
            f"{self._named(where)}: the {what} is the {type(value).__name__} object that the previous step "
            "returned, so a change to it would also change that step; return a copy in each step",
        )

    def _checked(self, step: Step, where: str) -> Step:
        """Return the step with plain JSON info and real booleans; its observation only if nothing had to change.

        Raises EnvironmentProblem.
        """
        reward = step.reward
        # The usual step passes all checks at once; an episode may have thousands of them.
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
                raise EnvironmentProblem(
                    "reward_not_finite", f"{named}: the reward is {reward}, expected a finite number"
                )
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
    """Return a metric's name that can be recorded."""
    return without_surrogates(str(key))


def _flag(value: Any, what: str) -> bool:
    """Return a boolean; numpy's are accepted, numbers and None are not."""
    if type(value).__name__ not in ("bool", "bool_"):
        raise EnvironmentProblem("flag_not_bool", f"{what} is {value!r}, expected True or False")
    return bool(value)


def _number(value: Any, what: str) -> float:
    """Return a finite float. Raises EnvironmentProblem."""
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
    """A model that the environment called gave no reply. `failure` is the rollout's, at boundary `environment`."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message, hint=failure.hint)
        self.failure = failure


class NoAuxiliaryModel(Unavailable):
    """No model has the role that the environment called. `failure` is the rollout's, at boundary `environment`."""

    def __init__(self, role: str, missing: Unavailable) -> None:
        super().__init__(missing.message, hint=missing.hint)
        message = f"context.model({role!r}): {missing.message}"
        self.failure = Failure("environment", "auxiliary_model_not_configured", message, missing.hint)


def auxiliary_failure(error: BaseException) -> Failure | None:
    """Return the failure of the auxiliary model because of which the author's code raised `error`; None for another cause."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, AuxiliaryModelFailed | NoAuxiliaryModel):
            return cause.failure
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None


class AuxiliaryModels:
    """The models of one episode. spent: `calls_ROLE` and `tokens_ROLE`, for the episode's metrics.

    calls: each with `role`, `model`, `messages` (those that are new for this role), `reply`, `usage`, `seconds`, `attempts` and
    `cost`, private values included.
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
        """Return one reply. Raises AuxiliaryModelFailed; NoAuxiliaryModel when no model has the role."""
        try:
            if self._port is None:
                raise Unavailable(
                    "This environment runs without access to models.", hint="Play the app with `taskapp rollout`."
                )
            reply = self._port.ask(role, body)
        except Unavailable as missing:
            raise NoAuxiliaryModel(role, missing) from None
        except ModelFailed as failed:
            failure = failed.failure
            if failure.boundary not in ("timeout", "cancelled"):  # of the model, not of the rollout
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
    """The result of `context.model(role)`."""

    def __init__(self, role: str, models: AuxiliaryModels) -> None:
        self.role = role
        self._models = models

    def ask(self, messages: Sequence[dict[str, Any]], **sampling: Any) -> ChatReply:
        """Return one reply to a conversation (`[{"role": "user", "content": …}, …]`), in synchronous environments.

        sampling: additional members of the chat-completions request (`temperature`, `max_tokens`, …). Raises
        AuxiliaryModelFailed, Unavailable; ValueError for values that are not JSON.
        """
        try:
            body = plain({**sampling, "messages": list(messages)}, "request")
        except NotJson as error:
            raise ValueError(f"context.model({self.role!r}): {error}") from None
        assert isinstance(body, dict), "a dict stays one"
        return self._models.ask(self.role, body)

    async def chat(self, messages: Sequence[dict[str, Any]], **sampling: Any) -> ChatReply:
        """Like `ask`, for async environments. One call at a time: an episode runs in one thread."""
        return self.ask(messages, **sampling)
