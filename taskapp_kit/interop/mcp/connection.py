"""The episode of an MCP connection: its start, its end, and the permissions of the client.

This module does not use the MCP SDK.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from taskapp_kit.declare.specs import EnvironmentSpec
from taskapp_kit.errors import KitError, RolloutFailed, SessionError
from taskapp_kit.interop.call_queue import CallQueue
from taskapp_kit.net.response import Peer
from taskapp_kit.records.content import Content, Json
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.rollout.admission import ANYONE, Caller
from taskapp_kit.rollout.session import EnvironmentSession, SessionStart, SessionStep
from taskapp_kit.rollout.sessions import EnvironmentSessions

PROTOCOL = "mcp"
"""The protocol's name, which is stored with the rollouts of MCP sessions."""

T = TypeVar("T")
Ended = Callable[["Rollout | RolloutFailed"], None]


@dataclass(frozen=True, slots=True)
class EpisodeChoice:
    """The episode to begin. seed: None draws a seed. split: None selects the first split that contains the seed."""

    seed: int | None = None
    split: str | None = None
    config: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskText:
    """The prompt for a model: the instructions, which may be empty, and the latest observation."""

    instructions: str
    observation: Content


class McpConnection:
    """An MCP connection. The first call begins the episode, and calls run in order (`CallQueue`).

    The parameter `peer` of the methods is the HTTP connection of the request.

    Attributes:
        choice: The episode that the first call begins.
        control: Whether the client may reset, finish and read the scorecard. A client without control is a policy,
            which plays one episode and sees no reward.
        ended: Called when an episode was scored or has failed.
        session: An open session. If it is None, the first call opens a session.
    """

    def __init__(
        self,
        sessions: EnvironmentSessions,
        environment: EnvironmentSpec,
        choice: EpisodeChoice,
        *,
        caller: Caller = ANYONE,
        control: bool = False,
        ended: Ended | None = None,
        session: EnvironmentSession | None = None,
    ) -> None:
        self.environment = environment
        self.control = control
        self._sessions = sessions
        self._choice = choice
        self._caller = caller
        self._ended = ended
        self._queue = CallQueue()
        self._session = session
        self._start: SessionStart | None = None
        self._observation: Content = None
        self._end: Rollout | None = None
        self._failed: KitError | None = None

    async def task(self, peer: Peer | None = None) -> TaskText:
        """Begin the episode if necessary, and return the task and the latest observation.

        Raises the exceptions of `act`.
        """

        async def read() -> TaskText:
            start = await self._begun()
            return TaskText(_instructions(start), self._observation)

        return await self._in_order(read, peer)

    async def act(self, tool: str, args: Mapping[str, Json], peer: Peer | None = None) -> SessionStep:
        """Run an action. A rejected action also counts as a step.

        Raises:
            RolloutFailed: The episode failed in this call or in an earlier call.
            SessionError: The episode has ended, or its session has expired.
            Saturated, RequestError, Unavailable, StoreError: The episode could not begin.
        """

        async def step() -> SessionStep:
            await self._begun()
            assert self._session is not None, "begun"
            return self._seen(await self._session.step([(tool, dict(args))]))

        return await self._in_order(step, peer)

    async def reset(self, choice: EpisodeChoice, peer: Peer | None = None) -> TaskText:
        """Cancel an unfinished episode, and begin a new episode. Raises the exceptions of `act`."""

        async def again() -> TaskText:
            if self._session is not None and self._session.closed:
                self._session = None
            self._start = self._end = self._failed = None
            return TaskText(_instructions(await self._begin(choice)), self._observation)

        return await self._in_order(again, peer)

    async def finish(self, peer: Peer | None = None) -> SessionStep:
        """Truncate, score and store the episode.

        Raises the exceptions of `act`, and SessionError if no episode has begun.
        """

        async def last() -> SessionStep:
            if self._session is None or self._start is None:
                raise _no_episode()
            return self._seen(await self._session.finish())

        return await self._in_order(last, peer)

    async def scorecard(self, peer: Peer | None = None) -> Rollout:
        """Return the scored episode.

        Raises RolloutFailed if the episode failed, and SessionError if it has not ended.
        """

        async def read() -> Rollout:
            if self._failed is not None:
                raise self._failed
            if self._start is None:
                raise _no_episode()
            if self._end is None:
                raise SessionError(
                    "episode_not_over",
                    "The episode has no scorecard, because it has not ended.",
                    hint="Call `finish` first, or play the episode to its end.",
                )
            return self._end

        return await self._in_order(read, peer)

    async def close(self, *, finish: bool = True) -> None:
        """Close the connection's session.

        An unfinished episode is truncated and scored, or cancelled if `finish` is false.
        """

        async def last() -> None:
            session = self._session
            if session is None:
                return
            try:
                if finish and session.state == "playing":
                    self._seen(await session.finish())
            except KitError:
                pass  # the episode failed, and the failure is already stored
            finally:
                await session.close()

        self._queue.drop()
        await self._in_order(last, None)

    # -- internals -------------------------------------------------------------------------------------------------

    async def _in_order(self, work: Callable[[], Awaitable[T]], peer: Peer | None) -> T:
        """Run `work` after all earlier calls. If this call is cancelled, `work` continues."""

        async def run() -> T:
            try:
                return await work()
            except RolloutFailed as error:
                if self._failed is None:
                    self._failed = error
                    self._report(error)
                raise

        return await asyncio.shield(self._queue.start(run, peer or Peer()))

    async def _begun(self) -> SessionStart:
        if self._failed is not None:
            raise self._failed
        return self._start or await self._begin(self._choice)

    async def _begin(self, choice: EpisodeChoice) -> SessionStart:
        if self._session is None:
            self._session = await self._sessions.open(self.environment.name, caller=self._caller, protocol=PROTOCOL)
        start = await self._session.reset(choice.seed, split=choice.split, config=choice.config)
        self._start, self._observation = start, start.observation
        if start.end is not None:
            self._over(start.end)
        return start

    def _seen(self, step: SessionStep) -> SessionStep:
        self._observation = step.observation
        if step.end is not None:
            self._over(step.end)
        return step

    def _over(self, end: Rollout) -> None:
        if self._end is None:
            self._end = end
            self._report(end)

    def _report(self, end: Rollout | RolloutFailed) -> None:
        if self._ended is not None:
            self._ended(end)


def _instructions(start: SessionStart) -> str:
    """Return the system prompt of the episode."""
    system = [message["content"] for message in start.messages if message["role"] == "system"]
    return "\n\n".join(system)


def _no_episode() -> SessionError:
    return SessionError("no_episode", "No episode has begun.", hint="Call an action or `reset` to begin one.")
