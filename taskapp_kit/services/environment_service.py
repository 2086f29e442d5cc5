"""Environments as services: `app.as_service("crafter", num_replicas=4)`.

Each session of the service has an environment of its own in a replica, held open by the code of docs/connect/sessions.md, so that
limits, refusals, failures and rewards are those of `POST /rollout`. A replica's process makes one service of the app.
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
"""The protocol of these sessions, as `docs/connect/sessions.md` calls it."""


@dataclass(frozen=True, slots=True)
class EnvironmentStep:
    """What a step returns; it unpacks as `observation, reward, done = …`.

    Attributes:
        observation: Text, a JSON object, or a list of chat content parts where images are in it.
        reward: What this step adds to the episode's reward; None: undefined, which is not 0.
        terminated: Whether the environment ended the episode.
        truncated: Whether a limit, or the caller, ended it.
        info: Of the last action.
        refused: Why the last action was not done; None where it was.
        turn: The number of decisions so far.
        parts: `env`, `event` and, in the last step, `outcome` of the reward.
        episode: Set in the last step.
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
        """Whether the episode is over."""
        return self.episode is not None

    def __iter__(self) -> Iterator[Any]:
        return iter((self.observation, self.reward, self.done))


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """How an episode ended.

    Attributes:
        rollout_id: The episode's id.
        status: terminated or truncated.
        stop_reason: Why it ended.
        reward: That of `POST /rollout`; None: undefined.
        episode_return: The sum of the environment's rewards.
        length: The number of steps.
        digest: Of the episode.
        metrics: The numbers of the environment and of the scorecard.
        scorecard: As `POST /rollout` writes it.
        warnings: Sentences for the environment's author.
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
    """One environment of an app, held open: what a session of `app.as_service(…)` has.

    app: the app, or where it is, as `taskapp serve` takes it. environment: the first declared when absent. Nothing is
    stored. The variables of models (`TASKAPP_JUDGE_URL` and the like) are read from the replica's process environment,
    which has no keys of this process: give them as `environment=` of the service's options.
    """

    def __init__(self, app: str, environment: str | None = None) -> None:
        self._app, self._environment = app, environment
        self._session: EnvironmentSession | None = None
        self._start: SessionStart | None = None

    @classmethod
    def setup_worker(cls, app: str, environment: str | None = None) -> None:
        """Make the app's service, once in each process. Raises Unavailable with what is missing."""
        global _in_replica
        find_environment(service_here(app).spec, environment)
        _in_replica = True

    @classmethod
    def sent_arguments(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Put the app's reference in its place. Raises DeclarationError, DiscoveryError, RequestError."""
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
        """Begin an episode; return its first observation. One that has not ended is cancelled.

        Args:
            seed: Drawn when absent.
            split: The seed's split.
            config: Arguments of the environment's constructor.
            index: A position in the split, in place of a seed.
            difficulty: That the row must have.
            tags: That the row must have.
            reward: Weights in place of the app's.
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
        """Make one decision. An action that is refused is a step whose observation is the reason.

        Args:
            action: `{"tool": {args}}`, a list of these, or text: a model's words, from which the actions are read as in
                output mode `text`.
        """
        session = await self._opened()
        if isinstance(action, str):
            most = action.count("{") + action.count("<")  # each action but a tool's bare name has one of them
            return _described(await self._played(session.step(written=action, seconds=_seconds(session, most))))
        calls = [(call.tool, call.args) for call in answer_from(action, "A caller").tool_calls]
        return _described(await self._played(session.step(calls, seconds=_seconds(session, len(calls)))))

    @endpoint
    async def finish(self) -> EnvironmentStep:
        """End the episode now: truncated, and scored. Of one that is over, return its last step again."""
        return _described(await self._played((await self._opened()).finish()))

    @endpoint
    def describe(self) -> dict[str, Json]:
        """Return what a trainer that samples itself needs of the present episode.

        `environment`, `split`, `seed`, `rollout_id`, `actions`, `limits`, `reward_formula`, and `messages` and `tools`,
        which a model would be sent in the first turn.
        """
        start = self._start
        if start is None:
            raise BadArgument("There is no episode to describe.", hint="Begin one with a reset.")
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
        """Close the environment; an episode under way ends as cancelled. The end of the session does it, too."""
        session, self._session = self._session, None
        if session is not None:
            await on_services_loop(session.close())

    async def _opened(self) -> EnvironmentSession:
        """Return the session; the first call opens it."""
        if self._session is None:
            service = await asyncio.to_thread(service_here, self._app)
            self._session = await on_services_loop(service.sessions.open(self._environment, protocol=PROTOCOL))
        return self._session

    async def _played(self, work: Coroutine[Any, Any, Played]) -> Played:
        """Return the result of a session's verb. Raises RolloutFailed with the boundary in its text."""
        try:
            return await on_services_loop(work)
        except RolloutFailed as error:
            raise_with_boundary(error)


def raise_with_boundary(error: RolloutFailed) -> NoReturn:
    """Raise a failure again, with its boundary and code in the text: an endpoint's error is a type and a text."""
    failure = error.failure
    said = f"The episode failed at the boundary {failure.boundary} ({failure.code}): {failure.message}."
    raise RolloutFailed(replace(failure, message=said), rollout_id=error.rollout_id) from error


def app_arguments(app: TaskApp | str | Path, environment: str | None = None) -> dict[str, Any]:
    """Return the arguments of `EnvironmentActor` as they are sent. Raises DeclarationError, DiscoveryError, RequestError."""
    found = app if isinstance(app, TaskApp) else find_app(str(app))
    name = None if environment is None else find_environment(found.freeze(), environment).name
    return {"app": reference_of(found), "environment": name}


_in_replica = False
"""Whether this process is a replica, which is made anew when it ends."""
_services: dict[str, Service] = {}
_making = threading.Lock()


def service_here(app: str) -> Service:
    """Return this process's service of an app, made at the first call. Not on the loop of services.

    Raises Unavailable, DiscoveryError, DeclarationError, KitError.
    """
    with _making:
        if app not in _services:
            _services[app] = wait_on_services_loop(_made(app))
        return _services[app]


def end_replica_if_stuck(app: str) -> None:
    """End this process, if it is a replica with so many stuck threads that its service accepts no more episodes.

    Threads cannot be ended. The sessions that are open here are lost with it (ReplicaDied).
    """
    service = _services[app]
    if _in_replica and service.admission.draining:
        log.error("a replica has too many threads that environments do not return from; it ends, and is made anew")
        os.kill(os.getpid(), signal.SIGKILL)


async def _made(app: str) -> Service:
    settings = from_environment()
    service = Service.of(
        await asyncio.to_thread(find_app, app),
        settings,
        max_time_seconds=settings.max_time_seconds,
        session_idle_seconds=math.inf,  # a session's end is that of its block, or of its process
    )
    try:
        await asyncio.to_thread(service.prepare)
    except KitError:
        await service.close()
        raise
    return service


def _seconds(session: EnvironmentSession, actions: int) -> float | None:
    """Return the time limit of a step with so many actions; in a process of its own, an environment has it there."""
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
