"""The calls of one session of a protocol whose clients may send several at once: run one after the other, few of them wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from taskapp_kit.errors import SessionError
from taskapp_kit.net.response import Peer

MAX_WAITING = 8
"""Calls of a session that wait behind the one in progress: a model rarely calls more tools at once."""

T = TypeVar("T")


class CallQueue:
    """Runs calls in their order. A call in progress continues when its client goes away; a waiting one is dropped."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Task[Any], tuple[asyncio.Future[None], Peer]] = {}
        self._calls: set[asyncio.Task[Any]] = set()
        self._running = False

    def start(self, work: Callable[[], Awaitable[T]], peer: Peer) -> asyncio.Task[T]:
        """Return the task of a call, which begins after the calls before it. Raises SessionError: too many wait.

        The task raises SessionError if its client hung up before it began, and what the work raises.
        """
        self._drop_left()
        if len(self._waiting) >= MAX_WAITING:
            raise SessionError(
                "session_busy",
                f"{len(self._waiting)} calls of the session wait for the one in progress, the most that may wait.",
                hint="Wait for answers before the next calls.",
            )
        turn = asyncio.get_running_loop().create_future()

        async def run() -> T:
            await turn
            try:
                return await work()
            finally:
                self._next()

        task = asyncio.create_task(run())
        self._waiting[task] = turn, peer
        self._calls.add(task)
        task.add_done_callback(self._done)
        if not self._running:
            self._next()
        return task

    def join(self, task: asyncio.Task[Any], peer: Peer) -> None:
        """Let a waiting call be that of another connection of its client."""
        if task in self._waiting:
            self._waiting[task] = self._waiting[task][0], peer

    def drop(self) -> None:
        """Drop all calls that wait: the session is being closed."""
        self._drop_left(everyone=True)

    def _next(self) -> None:
        self._drop_left()
        self._running = bool(self._waiting)
        if self._running:
            turn, _ = self._waiting.pop(next(iter(self._waiting)))
            turn.set_result(None)

    def _drop_left(self, *, everyone: bool = False) -> None:
        for task, (turn, peer) in list(self._waiting.items()):
            if everyone or peer.gone:
                del self._waiting[task]
                why = "The call was dropped before it began: its client left, or the session was closed."
                turn.set_exception(SessionError("session_not_found", why))

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._calls.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, in case no client waits for it
