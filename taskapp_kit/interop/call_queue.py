"""Runs the concurrent calls of a session one after another, with a limited queue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from taskapp_kit.errors import SessionError
from taskapp_kit.net.response import Peer

MAX_WAITING = 8
"""The maximum number of waiting calls in a session. A model rarely calls more tools in one message."""

T = TypeVar("T")


class CallQueue:
    """A queue that runs calls in order.

    If a client disconnects, its waiting calls are dropped, but a running call continues.
    """

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Task[Any], tuple[asyncio.Future[None], Peer]] = {}
        self._calls: set[asyncio.Task[Any]] = set()
        self._running = False

    def start(self, work: Callable[[], Awaitable[T]], peer: Peer) -> asyncio.Task[T]:
        """Return an asyncio task that runs `work` after all earlier calls.

        Raises SessionError if too many calls are waiting.

        The task raises the exceptions of `work`, or SessionError if the client disconnected before the call began.
        """
        self._drop_abandoned()
        if len(self._waiting) >= MAX_WAITING:
            raise SessionError(
                "session_busy",
                f"The session already has {len(self._waiting)} waiting calls, which is the maximum.",
                hint="Wait for their results before you send more calls.",
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
        """Assign a waiting call to another connection of the same client."""
        if task in self._waiting:
            self._waiting[task] = self._waiting[task][0], peer

    def drop(self) -> None:
        """Drop all waiting calls because the session is closing."""
        self._drop_abandoned(everyone=True)

    def _next(self) -> None:
        self._drop_abandoned()
        self._running = bool(self._waiting)
        if self._running:
            turn, _ = self._waiting.pop(next(iter(self._waiting)))
            turn.set_result(None)

    def _drop_abandoned(self, *, everyone: bool = False) -> None:
        for task, (turn, peer) in list(self._waiting.items()):
            if everyone or peer.gone:
                del self._waiting[task]
                why = "The call was dropped before it began, because its client disconnected or the session was closed."
                turn.set_exception(SessionError("session_not_found", why))

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._calls.discard(task)
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved, because the client may no longer wait for it
