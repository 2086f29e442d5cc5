"""Environments as services: `app.as_service("crafter", num_replicas=4)`.

Each session of the service has its own environment in a replica. Sessions use the code of HTTP sessions
(docs/connect/sessions.md), so limits, refusals, failures and rewards are the same as in `POST /rollout`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import sys
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from taskapp_kit.config import from_environment
from taskapp_kit.declare.app import TaskApp
from taskapp_kit.declare.discovery import find_app, reference_of
from taskapp_kit.declare.episode_selection import find_environment
from taskapp_kit.errors import BadArgument, KitError, RolloutFailed
from taskapp_kit.records.content import Content, Json
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.records.scorecard import Blend
from taskapp_kit.rollout.policy.builtin import answer_from
from taskapp_kit.rollout.response import PictureRoom, wire_observation
from taskapp_kit.rollout.service import Service
from taskapp_kit.rollout.session import EnvironmentSession, SessionStart, SessionStep
from taskapp_kit.services.actor import Actor
from taskapp_kit.services.endpoints import endpoint
from taskapp_kit.services.loop import on_services_loop, wait_on_services_loop

log = logging.getLogger("taskapp_kit.services")

Played = TypeVar("Played")

PROTOCOL = "service"
"""The protocol name of these sessions, as listed in `docs/connect/sessions.md`."""


@dataclass(frozen=True, slots=True)
class EnvironmentStep:
    """The result of a step, which unpacks as `observation, reward, done = …`.

    Attributes:
        observation: Text, a JSON object or, with images, a list of chat content parts.
        reward: The step's contribution to the episode's reward. None means undefined, not 0.
        terminated: Whether the environment ended the episode.
        truncated: Whether a limit or the caller ended the episode.
        info: The `info` of the last action.
        refused: Why the last action was refused, or None if it was not.
        turn: Number of turns so far.
        parts: The parts of the reward: `env`, `event` and, in the last step, `outcome`.
        episode: The result of the episode. None before the last step.
    """

    observation: Json
    reward: float | None
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Json] = field(default_factory=dict)
    refused: str | None = None
    turn: int = 0
    parts: dict[str, float | None] = field(default_factory=dict)
    episode: EpisodeResult | None = None

    @property
    def done(self) -> bool:
        """Whether the episode has ended."""
        return self.episode is not None

    def __iter__(self) -> Iterator[Any]:
        return iter((self.observation, self.reward, self.done))


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """The result of an episode.

    Attributes:
        rollout_id: Id of the episode.
        status: `terminated` or `truncated`.
        stop_reason: Why the episode ended.
        reward: The same reward as in `POST /rollout`. None means undefined.
        episode_return: Sum of the environment's rewards.
        length: Number of steps.
        digest: Digest of the episode.
        metrics: Metrics of the environment and of the scorecard.
        scorecard: The scorecard in the format of `POST /rollout`.
        warnings: Messages for the environment's author.
    """

    rollout_id: str
    status: str
    stop_reason: str
    reward: float | None
    episode_return: float
    length: int
    digest: str
    metrics: dict[str, float]
    scorecard: dict[str, Json]
    warnings: list[str]


class EnvironmentActor(Actor, stateful=True):
    """One environment of an app, for one session of `app.as_service(…)`. Episodes are not stored.

    Settings of models, such as `TASKAPP_JUDGE_URL`, are read from the environment variables of the replica's process.
    That process does not inherit API keys. Pass keys in the service's option `environment=`.

    Args:
        app: The app, or a reference that `taskapp serve` accepts.
        environment: Name of the environment. Defaults to the app's first environment.
    """

    def __init__(self, app: str, environment: str | None = None) -> None:
        self._app, self._environment = app, environment
        self._session: EnvironmentSession | None = None
        self._start: SessionStart | None = None

    @classmethod
    def setup_worker(cls, app: str, environment: str | None = None) -> None:
        """Create the app's service once per process. Raises Unavailable if a required setting is missing."""
        global _in_replica
        find_environment(service_here(app).spec, environment)
        _in_replica = True

    @classmethod
    def sent_arguments(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Replace the app with a reference to it. Raises the errors of `app_arguments`."""
        return (), app_arguments(*args, **kwargs)

    @endpoint
    async def reset(
        self,
        seed: int | None = None,
        split: str | None = None,
        config: Mapping[str, Json] | None = None,
        index: int | None = None,
        difficulty: Json = None,
        tags: str | Sequence[str] | None = None,
        reward: Blend | None = None,
    ) -> Json:
        """Start an episode and return its first observation. A running episode is cancelled.

        Args:
            seed: Seed of the task. Defaults to a random seed.
            split: Split of the seed.
            config: Arguments of the environment's constructor.
            index: Position in the split, instead of a seed.
            difficulty: Difficulty that the row must have.
            tags: Tags that the row must have.
            reward: Weights of the reward. Defaults to the app's weights.
        """
        chosen = {"index": index, "difficulty": difficulty, "tags": tags}
        given = {**(config or {}), **{name: value for name, value in chosen.items() if value is not None}}
        self._start = None
        session = await self._opened()
        end_replica_if_stuck(self._app)
        self._start = start = await self._played(session.reset(seed, split=split, config=given, reward=reward))
        return _shown(start.observation)

    @endpoint
    async def step(self, action: Any) -> EnvironmentStep:
        """Take one step. If the action is refused, the observation states the reason.

        Args:
            action: `{"tool": {args}}`, a list of such objects, or a model's reply, which is parsed as in the output
                mode `text`.
        """
        session = await self._opened()
        if isinstance(action, str):
            most = action.count("{") + action.count("<")  # only a bare tool name lacks these characters
            return _described(await self._played(session.step(written=action, seconds=_seconds(session, most))))
        calls = [(call.tool, call.args) for call in answer_from(action, "A caller").tool_calls]
        return _described(await self._played(session.step(calls, seconds=_seconds(session, len(calls)))))

    @endpoint
    async def finish(self) -> EnvironmentStep:
        """Truncate and score the episode, and return its last step. An episode that has already ended does not change."""
        return _described(await self._played((await self._opened()).finish()))

    @endpoint
    def describe(self) -> dict[str, Json]:
        """Return a description of the current episode, for a trainer that samples the model itself.

        Returns:
            An object with `environment`, `split`, `seed`, `rollout_id`, `actions`, `limits`, `reward_formula`, and the
            `messages` and `tools` that a model would receive in the first turn.
        """
        start = self._start
        if start is None:
            raise BadArgument("No episode has been started.", hint="Call `reset` first.")
        return {
            "environment": start.environment,
            "split": start.split,
            "seed": start.seed,
            "rollout_id": start.rollout_id,
            "actions": start.actions,
            "messages": start.messages,
            "tools": start.tools,
            "limits": start.limits,
            "reward_formula": start.formula,
        }

    @endpoint
    async def close(self) -> None:
        """Close the environment and cancel a running episode. The end of the session also closes the environment."""
        session, self._session = self._session, None
        if session is not None:
            await on_services_loop(session.close())

    async def _opened(self) -> EnvironmentSession:
        """Return the environment's session. The first call opens it."""
        if self._session is None:
            service = await asyncio.to_thread(service_here, self._app)
            self._session = await on_services_loop(service.sessions.open(self._environment, protocol=PROTOCOL))
        return self._session

    async def _played(self, work: Coroutine[Any, Any, Played]) -> Played:
        """Await a call of the session and return its result.

        If the call fails, RolloutFailed is raised with the boundary in its message.
        """
        try:
            return await on_services_loop(work)
        except RolloutFailed as error:
            raise_with_boundary(error)


def raise_with_boundary(error: RolloutFailed) -> NoReturn:
    """Raise a failure again with its boundary and code in the message. Callers receive only the type and message."""
    failure = error.failure
    message = f"The episode failed at the boundary {failure.boundary} ({failure.code}): {failure.message}."
    raise RolloutFailed(replace(failure, message=message), rollout_id=error.rollout_id) from error


def app_arguments(app: TaskApp | str | Path, environment: str | None = None) -> dict[str, Any]:
    """Return the arguments for `EnvironmentActor`.

    Raises DiscoveryError if the app is not found, DeclarationError if it is invalid, and RequestError if it has no such
    environment.
    """
    task_app = app if isinstance(app, TaskApp) else find_app(str(app))
    name = None if environment is None else find_environment(task_app.freeze(), environment).name
    return {"app": reference_of(task_app), "environment": name}


_in_replica = False
"""Whether this process is a replica. A replica that ends is restarted."""
_services: dict[str, Service] = {}
_making = threading.Lock()


def service_here(app: str) -> Service:
    """Return this process's service of an app. The first call creates the service.

    Do not call this function on the loop of services. Raises Unavailable if a required setting is missing,
    DiscoveryError if the app is not found, and DeclarationError if it is invalid.
    """
    with _making:
        if app not in _services:
            _services[app] = wait_on_services_loop(_made(app))
        return _services[app]


def end_replica_if_stuck(app: str) -> None:
    """Kill this process if it is a replica whose service rejects episodes because too many threads are stuck.

    Threads cannot be stopped. The open sessions of this process are lost (ReplicaDied).
    """
    service = _services[app]
    if _in_replica and service.admission.draining:
        log.error("restarting this replica, because too many threads are stuck in environments")
        os.kill(os.getpid(), signal.SIGKILL)


async def _made(app: str) -> Service:
    settings = from_environment()
    service = Service.of(
        await asyncio.to_thread(find_app, app),
        settings,
        max_time_seconds=settings.max_time_seconds,
        session_idle_seconds=math.inf,  # a session ends when its block or its process ends
    )
    try:
        await asyncio.to_thread(service.prepare)
    except KitError:
        await service.close()
        raise
    return service


def _seconds(session: EnvironmentSession, actions: int) -> float | None:
    """Return the time limit of a step with this many actions. An isolated environment's process enforces its own limit."""
    each, isolated = session.environment.step_timeout_seconds, session.environment.isolation == "process"
    return None if each is None or isolated else each * max(1, actions)


def _shown(observation: Content) -> Json:
    if isinstance(observation, list):
        return wire_observation(observation, PictureRoom(sys.maxsize))["content"]
    return "" if observation is None else observation


def _described(step: SessionStep) -> EnvironmentStep:
    last = step.steps[-1] if step.steps else None
    return EnvironmentStep(
        _shown(step.observation),
        step.reward,
        step.terminated,
        step.truncated,
        {} if last is None else last.info,
        None if last is None else last.refused,
        step.turn,
        dict(step.parts),
        None if step.end is None else _result(step.end),
    )


def _result(end: Rollout) -> EpisodeResult:
    return EpisodeResult(
        end.rollout_id,
        end.status,
        end.stop_reason,
        end.reward,
        end.total_reward,
        end.length,
        end.digest or "",
        end.all_metrics,
        end.scorecard.to_json(),
        end.warnings,
    )
