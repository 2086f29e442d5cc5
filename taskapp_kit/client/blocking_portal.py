"""Blocking versions of the asynchronous clients' calls. They also work inside a running event loop.

For example, the guides call `job.submit()` inside `async def main()`. The coroutine then runs in an event loop on
another thread, and the caller blocks until the coroutine has finished.
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
"""Seconds between a waiting caller's checks whether its task was cancelled."""
AHEAD = 64
"""How many items `iterate` may read before its caller needs them."""


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine and return its result.

    Ctrl-C, or cancelling the calling asyncio task, first cancels the coroutine. Inside a running event loop, this
    function blocks the loop, and the coroutine and its callbacks run on another thread.
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
        coroutine.close()  # if the thread could not start the coroutine


def iterate(open_stream: Callable[[], AsyncIterator[Item]]) -> Iterator[Item]:
    """Yield the items of an asynchronous iterator in blocking code.

    Leaving the `for` loop early closes the iterator.
    """
    items: queue.Queue[tuple[Item] | None] = queue.Queue()
    free = threading.Semaphore(AHEAD)

    async def feed() -> None:
        stream = open_stream()
        try:
            async for item in stream:
                while not free.acquire(blocking=False):  # noqa: ASYNC110 — the reader is on another thread
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
                boxed = items.get(timeout=POLL_SECONDS)
            except queue.Empty:
                caller.check()
                continue
            if boxed is None:
                caller.wait(feeding)
                return
            free.release()
            yield boxed[0]


class LoopThread:
    """An event loop on a separate thread, for blocking calls that share connections. `loop_thread` creates it."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal

    def call(self, function: Callable[[], Awaitable[Result]]) -> Result:
        """Run a coroutine function and return its result.

        Ctrl-C, or cancelling the calling asyncio task, ends the wait.
        """
        return _CallingTask().wait(self._portal.start_task_soon(function))

    def entered(self, context: AbstractAsyncContextManager[Item]) -> AbstractContextManager[Item]:
        """Return a blocking context manager that enters and exits the asynchronous `context` on the thread."""
        return self._portal.wrap_async_context_manager(context)


@contextmanager
def loop_thread() -> Iterator[LoopThread]:
    """Run an event loop on a separate thread until the `with` block ends."""
    with start_blocking_portal() as portal:
        yield LoopThread(portal)


class DaemonLoop:
    """An event loop on a daemon thread, for blocking objects that other libraries use and may never close.

    `stop` ends the thread. Unlike the thread of an unclosed portal, this thread does not prevent the process from
    exiting.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine and return its result. An exception in the calling thread, such as Ctrl-C, cancels it."""
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
    """The asyncio task in which the blocking call is made, if any."""

    def __init__(self) -> None:
        try:
            self._task = asyncio.current_task()
        except RuntimeError:
            self._task = None
        self._cancelled_before = 0 if self._task is None else self._task.cancelling()

    def check(self) -> None:
        """Raise CancelledError if the task was cancelled. Under asyncio.run, a first Ctrl-C only cancels the task."""
        if self._task is not None and self._task.cancelling() > self._cancelled_before:
            raise asyncio.CancelledError

    def wait(self, future: Future[Result]) -> Result:
        """Wait for the future and return its result. Raises CancelledError if the calling asyncio task is cancelled."""
        while True:
            try:
                return future.result(POLL_SECONDS)
            except NotYet:
                if future.done():  # the coroutine itself raised TimeoutError
                    raise
                self.check()
