"""Rewards as services: a function, a reward model at an HTTP endpoint, or the rubrics and judges of an app.

    reward = RewardActor.options(num_replicas=2).as_service(correct)
    value = await reward.evaluate_response.route(prompt, response, target)

Each service returns a number, or None if the reward is undefined. A failure raises an exception and never becomes 0.
Rubrics in task apps call the services with `route_sync`, or await `route`. A failure in such a call is a scoring
failure.
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
"""Time limit in seconds of one call of a reward model, including retries."""

RewardOf = Callable[[Any, str, Any], Any]
"""A function of (prompt, response, target) that returns a number or None, or an awaitable of a number or None."""


class RewardActor(Actor, concurrent_calls=64):
    """A reward function as a service: `RewardActor.options(num_replicas=2).as_service(function)`.

    Each replica runs up to `concurrent_calls` concurrent calls of an asynchronous function, or one call of a
    synchronous function.

    Args:
        function: Synchronous or asynchronous `fn(prompt, response, target)`, defined at the top level of a file. It returns
            a number, or None if the reward is undefined. A subclass that overrides `reward` does not need a function.
    """

    def __init__(self, function: ClassReference | RewardOf | None = None) -> None:
        self._function = function.load() if isinstance(function, ClassReference) else function
        self._one = asyncio.Lock()

    @classmethod
    def sent_arguments(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Replace functions with references. Raises BadArgument for a function that another process cannot import."""
        if cls.reward is RewardActor.reward and not (args or kwargs):
            raise BadArgument(
                f"{cls.__name__} has no reward function. Expected fn(prompt, response, target) -> float.",
                hint="Pass a function to as_service, or override reward in a subclass.",
            )
        return tuple(map(_sent, args)), {name: _sent(value) for name, value in kwargs.items()}

    def reward(self, prompt: Any, response: str, target: Any) -> Any:
        """Return the reward (a number or None), or an awaitable of the reward. Subclasses may override this method."""
        if self._function is None:
            raise ServiceError(f"{type(self).__name__} has no reward function and does not override `reward`.")
        return self._function(prompt, response, target)

    @endpoint(idempotent=True)
    async def evaluate_response(self, prompt: Any, response: str, target: Any = None) -> float | None:
        """Return the reward of a response, or None if it is undefined.

        Args:
            prompt: Prompt that precedes the response.
            response: Response to score.
            target: Value that the function compares with the response.

        Raises:
            ServiceError: The function did not return a number or None. Exceptions in the function are passed on.
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
        """Return the reward of a response. This is an alias of `evaluate_response`."""
        return await self.evaluate_response(prompt, response, target)


class RewardModel(RewardActor):
    """A reward model at an HTTP endpoint, called like `@app.judge(kind="reward_model")` (docs/environments/judges.md).

    The model receives the prompt and the response as messages. A subclass may override `reading` to send other input.
    The model's API key is the replica's variable TASKAPP_REWARD_KEY, which can only be set with the service's option
    `environment=`.

    Args:
        url: URL of the endpoint, such as `http://127.0.0.1:8000/classify`. Defaults to the replica's TASKAPP_REWARD_URL.
        model: Name of the model. Defaults to TASKAPP_REWARD_MODEL.
        role: Role of the model, which selects the variables if `url` is not set: `reward` selects TASKAPP_REWARD_URL.
        scale: Lowest and highest valid score. Any other score is an error.
        seconds: Time limit of one call, including retries.

    Raises:
        Unavailable: The model's URL is not set.
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
        address = role_endpoint(settings, role, reward_model=True)
        if url is not None:
            address = Endpoint(url, model, settings.variable(key_variable))
        if address is None:
            raise Unavailable(
                f"The URL of the reward model is not set, because {url_variable} is not set.",
                hint=f"Set the variable, or call {type(self).__name__}.as_service(url=…).",
            )
        self._endpoint = address
        self._scale, self._seconds = scale, seconds
        self._client = HttpModelClient("local", settings)

    def reading(self, prompt: Any, response: str, target: Any) -> Any:
        """Return the input of the model: a string, a list of messages, or the complete request body."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        return [*messages, {"role": "assistant", "content": response}]

    async def reward(self, prompt: Any, response: str, target: Any) -> float:
        """Return the model's score. Raises ServiceError if the call fails or does not return a number."""
        body = reward_request(self.reading(prompt, response, target))
        try:
            reply = await self._client.chat(self._endpoint, body, seconds=self._seconds)
            return read_reward(reply.message[ANSWER], self._scale)
        except ModelFailed as error:
            raise ServiceError(f"The call of the reward model failed: {error.failure.message}") from error
        except UnreadableVerdict as error:
            raise ServiceError(f"The reward model's response is invalid: {error}.") from error

    async def close(self) -> None:
        """Close the connections to the model."""
        await self._client.close()


class AppReward(RewardActor):
    """The rubrics and judges of a task app as a service: `AppReward.as_service("capitals.py")`.

    The environment must have one turn, so that a response ends the episode. `target` selects the episode. It is a seed,
    or a dict with `seed` and optionally `split` and `config`, in the format of `taskapp export tasks`. `prompt` is
    ignored, because the episode has its own prompt. Judges' API keys can only be set with the service's option
    `environment=`.

    Args:
        app: The app, or a reference that `taskapp serve` accepts.
        environment: Name of the environment. Defaults to the app's first environment.
    """

    def __init__(self, app: str, environment: str | None = None) -> None:
        super().__init__()
        self._app, self._environment = app, environment

    @classmethod
    def setup_worker(cls, app: str, environment: str | None = None) -> None:
        """Create the app's service once per process. Raises Unavailable if a required setting is missing."""
        find_environment(service_here(app).spec, environment)

    @classmethod
    def sent_arguments(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Replace the app with a reference to it. Raises ConfigError if the environment has several turns."""
        return (), _one_turn(*args, **kwargs)

    async def reward(self, prompt: Any, response: str, target: Any) -> float | None:
        """Play the response as an episode and return its reward. Raises RolloutFailed if the episode fails."""
        row = target if isinstance(target, Mapping) else {"seed": target}
        if not isinstance(row.get("seed"), int):
            raise BadArgument(
                f"`target` is {str(target)[:80]!r}. Expected the episode's seed, or a dict with seed, split and config."
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
            assert end is not None, "a finished episode has an end"
            return end.reward
        finally:
            await session.close()


def _one_turn(app: TaskApp | str | Path, environment: str | None = None) -> dict[str, Any]:
    task_app = app if isinstance(app, TaskApp) else find_app(str(app))
    spec = find_environment(task_app.freeze(), environment)
    if spec.most_turns != 1 and spec.max_steps != 1:
        raise ConfigError(
            f"An episode of the environment {spec.name!r} may have several turns, but a reward service scores one response.",
            hint="To play the environment, use app.as_service().",
        )
    return app_arguments(task_app, spec.name)


def _sent(value: Any) -> Any:
    return ClassReference.of(value, "function") if inspect.isfunction(value) else value
