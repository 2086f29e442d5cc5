"""Rewards as services: a function, a reward model behind an endpoint, the rubrics and judges of an app.

    reward = RewardActor.options(num_replicas=2).as_service(correct)
    value = await reward.evaluate_response.route(prompt, response, target)

Each gives a number, or None where there is none; what fails raises, and is never 0. In a rubric of a task app they are
called with `route_sync`, or awaited, and a failure there is one of scoring.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from taskapp_kit.config import from_environment
from taskapp_kit.declare.app import TaskApp
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.declare.episode_selection import find_environment
from taskapp_kit.errors import BadArgument, ConfigError, RolloutFailed, ServiceError, Unavailable
from taskapp_kit.records.content import Json
from taskapp_kit.rollout.models.access import role_endpoint
from taskapp_kit.rollout.models.client import HttpModelClient
from taskapp_kit.rollout.score.failures import BadScore
from taskapp_kit.rollout.score.judge_calls import ANSWER, read_reward, reward_request
from taskapp_kit.rollout.score.scoring import checked_number
from taskapp_kit.rollout.score.verdict import UnreadableVerdict
from taskapp_kit.rollout.service import Service
from taskapp_kit.services.actor import Actor
from taskapp_kit.services.endpoints import endpoint
from taskapp_kit.services.environment_service import PROTOCOL, app_arguments, raise_with_boundary, service_here
from taskapp_kit.services.loop import on_services_loop
from taskapp_kit.services.replicas import ClassReference
from taskapp_kit.wire.chat.conversation import Endpoint, ModelFailed, role_variables

ANY_NUMBER = (-math.inf, math.inf)
MODEL_SECONDS = 120.0
"""How long a reward model may take for one answer, its retries included."""

RewardOf = Callable[[Any, str, Any], Any]
"""(prompt, response, target) -> a number or None, or an awaitable of it."""


class RewardActor(Actor, concurrent_calls=64):
    """A reward function as a service: `RewardActor.options(num_replicas=2).as_service(function)`.

    An asynchronous function has up to `concurrent_calls` calls at once in each replica; any other one.

    Args:
        function: `fn(prompt, response, target)`, asynchronous or not, at the top of a file; it returns a number, or None
            where there is no reward. A subclass that overrides `reward` needs none.
    """

    def __init__(self, function: ClassReference | RewardOf | None = None) -> None:
        self._function = function.load() if isinstance(function, ClassReference) else function
        self._one = asyncio.Lock()

    @classmethod
    def sent_arguments(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Put functions' references in their places. Raises BadArgument for one that another process cannot import."""
        if cls.reward is RewardActor.reward and not (args or kwargs):
            raise BadArgument(
                f"{cls.__name__} was given no function; expected fn(prompt, response, target) -> float.",
                hint="Give it to as_service, or override reward in a subclass.",
            )
        return tuple(map(_sent, args)), {name: _sent(value) for name, value in kwargs.items()}

    def reward(self, prompt: Any, response: str, target: Any) -> Any:
        """Return the reward, a number or None, or an awaitable of it; a subclass overrides this."""
        if self._function is None:
            raise ServiceError(f"{type(self).__name__} has no function and does not override reward.")
        return self._function(prompt, response, target)

    @endpoint(idempotent=True)
    async def evaluate_response(self, prompt: Any, response: str, target: Any = None) -> float | None:
        """Return the reward of a response; None where there is none.

        Args:
            prompt: What the function, or the model, reads before the response.
            response: The text to be scored.
            target: What the function compares it with.

        Raises:
            ServiceError: The function returned what is no number. What it raises itself passes through.
        """
        if inspect.iscoroutinefunction(self._function or self.reward):
            value = await self.reward(prompt, response, target)
        else:
            async with self._one:
                value = await asyncio.to_thread(self.reward, prompt, response, target)
            if inspect.isawaitable(value):
                value = await value
        try:
            return None if value is None else checked_number(value, ANY_NUMBER)
        except BadScore as error:
            raise ServiceError(f"The reward function of {type(self).__name__} {error}.") from None

    @endpoint(idempotent=True)
    async def evaluate(self, prompt: Any, response: str, target: Any = None) -> float | None:
        """Another name of `evaluate_response`."""
        return await self.evaluate_response(prompt, response, target)


class RewardModel(RewardActor):
    """A reward model behind an HTTP endpoint, as `@app.judge(kind="reward_model")` calls it (docs/environments/judges.md).

    It is sent the prompt and the response as messages; a subclass that overrides `reading` sends something else. Its key is
    TASKAPP_REWARD_KEY in the replica and comes through the service's option `environment=` only.

    Args:
        url: Of the endpoint (`http://127.0.0.1:8000/classify`); None for TASKAPP_REWARD_URL in the replica.
        model: Of the endpoint; None for TASKAPP_REWARD_MODEL.
        role: Whose variables are read where `url` is absent.
        scale: Outside it an answer is an error.
        seconds: For one answer, retries included.

    Raises:
        Unavailable: The model has no address.
    """

    def __init__(
        self,
        url: str | None = None,
        model: str | None = None,
        *,
        role: str = "reward",
        scale: tuple[float, float] = ANY_NUMBER,
        seconds: float = MODEL_SECONDS,
    ) -> None:
        super().__init__()
        settings = from_environment()
        url_variable, _, key_variable = role_variables(role)
        found = role_endpoint(settings, role, reward_model=True)
        if url is not None:
            found = Endpoint(url, model, settings.variable(key_variable))
        if found is None:
            raise Unavailable(
                f"The reward model has no address: {url_variable} is not set.",
                hint=f"Set it, or write {type(self).__name__}.as_service(url=…).",
            )
        self._endpoint = found
        self._scale, self._seconds = scale, seconds
        self._client = HttpModelClient("local", settings)

    def reading(self, prompt: Any, response: str, target: Any) -> Any:
        """Return what the model reads: a text, a list of messages, or the request's body."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        return [*messages, {"role": "assistant", "content": response}]

    async def reward(self, prompt: Any, response: str, target: Any) -> float:
        """Return the model's number. Raises ServiceError when it cannot be called, or answers with anything else."""
        body = reward_request(self.reading(prompt, response, target))
        try:
            reply = await self._client.chat(self._endpoint, body, seconds=self._seconds)
            return read_reward(reply.message[ANSWER], self._scale)
        except ModelFailed as error:
            raise ServiceError(f"The reward model gave no answer: {error.failure.message}") from error
        except UnreadableVerdict as error:
            raise ServiceError(f"The reward model's answer cannot be used: {error}.") from error

    async def close(self) -> None:
        """Close its connections."""
        await self._client.close()


class AppReward(RewardActor):
    """The rubrics and judges of a task app as a service: `AppReward.as_service("capitals.py")`.

    For environments of one turn, whose episode a response ends. `target` names the episode: its seed, or a dict with `seed`
    and, where they are not the default, `split` and `config`, as `taskapp export tasks` writes them. The prompt is not
    read: the episode has it. Judges' keys come through the service's option `environment=` only.

    Args:
        app: The app, or where it is, as `taskapp serve` takes it.
        environment: None for the first declared.
    """

    def __init__(self, app: str, environment: str | None = None) -> None:
        super().__init__()
        self._app, self._environment = app, environment

    @classmethod
    def setup_worker(cls, app: str, environment: str | None = None) -> None:
        """Make the app's service, once in each process. Raises Unavailable with what is missing."""
        find_environment(service_here(app).spec, environment)

    @classmethod
    def sent_arguments(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Put the app's reference in its place. Raises ConfigError for an environment of several turns."""
        return (), _one_turn(*args, **kwargs)

    async def reward(self, prompt: Any, response: str, target: Any) -> float | None:
        """Play the response as an episode; return its reward. Raises RolloutFailed."""
        row = target if isinstance(target, Mapping) else {"seed": target}
        if not isinstance(row.get("seed"), int):
            raise BadArgument(
                f"target is {str(target)[:80]!r}; expected the episode's seed, or a dict with seed, split, config."
            )
        service = await asyncio.to_thread(service_here, self._app)
        try:
            return await on_services_loop(self._played(service, row, response))
        except RolloutFailed as error:
            raise_with_boundary(error)

    async def _played(self, service: Service, row: Mapping[str, Json], response: str) -> float | None:
        session = await service.sessions.open(self._environment, protocol=PROTOCOL)
        try:
            await session.reset(row["seed"], split=row.get("split"), config=row.get("config"))
            step = await session.step(written=response)
            end = step.end or (await session.finish()).end
            assert end is not None, "a finished episode has ended"
            return end.reward
        finally:
            await session.close()


def _one_turn(app: TaskApp | str | Path, environment: str | None = None) -> dict[str, Any]:
    found = app if isinstance(app, TaskApp) else find_app(str(app))
    spec = find_environment(found.freeze(), environment)
    if spec.most_turns != 1 and spec.max_steps != 1:
        raise ConfigError(
            f"An episode of environment {spec.name!r} may have more than one turn, and a reward service sees one response.",
            hint="Play it: app.as_service().",
        )
    return app_arguments(found, spec.name)


def _sent(value: Any) -> Any:
    return ClassReference.of(value, "function") if inspect.isfunction(value) else value
