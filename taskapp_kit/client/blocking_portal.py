"""Blocking calls of the asynchronous clients: runs a coroutine to its end, even inside a running event loop.

The guides call `job.submit()` inside `async def main()`. There the coroutine runs in a loop on another thread, and the
caller waits, as for any blocking call.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from typing import Any, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

Result = TypeVar("Result")
Item = TypeVar("Item")

POLL_SECONDS = 0.1
"""How often a waiting caller checks whether its own task was cancelled."""
AHEAD = 64
"""How many items an iteration may be ahead of its reader."""


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Return the coroutine's result. Ctrl-C, or the cancellation of the calling task, cancels the coroutine first.

    A running event loop is blocked until then, and the coroutine and its callbacks run on another thread.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)

    async def awaited() -> Result:
        return await coroutine

    caller = _CallingTask()
    try:
        with start_blocking_portal() as portal:
            return caller.wait(portal.start_task_soon(awaited))
    finally:
        coroutine.close()  # if the thread could not start it


def iterate(open_stream: Callable[[], AsyncIterator[Item]]) -> Iterator[Item]:
    """Yield the items of an asynchronous iterator, in blocking code. Leaving the loop early closes it."""
    items: queue.Queue[tuple[Item] | None] = queue.Queue()
    free = threading.Semaphore(AHEAD)

    async def feed() -> None:
        stream = open_stream()
        try:
            async for item in stream:
                while not free.acquire(blocking=False):  # noqa: ASYNC110 — the reader is another thread
                    await asyncio.sleep(POLL_SECONDS)
                items.put((item,))
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()
            items.put(None)

    caller = _CallingTask()
    with start_blocking_portal() as portal:
        feeding = portal.start_task_soon(feed)
        while True:
            try:
                got = items.get(timeout=POLL_SECONDS)
            except queue.Empty:
                caller.check()
                continue
            if got is None:
                caller.wait(feeding)
                return
            free.release()
            yield got[0]


class LoopThread:
    """An event loop in a thread of its own, for blocking calls that share connections; see `loop_thread`."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal

    def call(self, function: Callable[[], Awaitable[Result]]) -> Result:
        """Return the result of a coroutine function. Ctrl-C, or the cancellation of the calling task, ends the wait."""
        return _CallingTask().wait(self._portal.start_task_soon(function))

    def entered(self, context: AbstractAsyncContextManager[Item]) -> AbstractContextManager[Item]:
        """Return a blocking form of a context manager, entered and left in the thread."""
        return self._portal.wrap_async_context_manager(context)


@contextmanager
def loop_thread() -> Iterator[LoopThread]:
    """Run an event loop in a thread for the length of the block."""
    with start_blocking_portal() as portal:
        yield LoopThread(portal)


class DaemonLoop:
    """An event loop in a daemon thread, for blocking objects that other libraries drive and may forget to close.

    `stop` ends the thread. A process that ends does not wait for it, as it would for a portal that nobody has closed.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Return the coroutine's result. An exception in the caller's thread (Ctrl-C) cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the loop and its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class _CallingTask:
    """The asyncio task that makes the blocking call, if there is one."""

    def __init__(self) -> None:
        try:
            self._task = asyncio.current_task()
        except RuntimeError:
            self._task = None
        self._cancelled_before = 0 if self._task is None else self._task.cancelling()

    def check(self) -> None:
        """Raise CancelledError when the task was cancelled, which is all that a first Ctrl-C does under asyncio.run."""
        if self._task is not None and self._task.cancelling() > self._cancelled_before:
            raise asyncio.CancelledError

    def wait(self, future: Future[Result]) -> Result:
        """Return the future's result. Raises its error, or CancelledError when the task was cancelled meanwhile."""
        while True:
            try:
                return future.result(POLL_SECONDS)
            except NotYet:
                if future.done():  # the TimeoutError is the future's own
                    raise
                self.check()
