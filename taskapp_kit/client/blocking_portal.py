"""The blocking face of the clients: a coroutine is run to its end, also where an event loop already runs.

The guides call `job.submit()` inside `async def main()`. There the coroutine gets a loop on a thread of its own, and the
caller waits, as it would for any blocking call.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")
Item = TypeVar("Item")

LOOK_SECONDS = 0.1
"""How often a waiting caller looks whether its own task was cancelled meanwhile."""
AHEAD = 64
"""Items that an iteration may be ahead of its reader."""


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """The coroutine's result. Ctrl-C, or the cancellation of the calling task, cancels the coroutine first.

    Inside a running event loop the loop stands still until then, and the coroutine, with any callback in it, runs on
    another thread.
    """
    if not _in_a_loop():
        return asyncio.run(coroutine)
    elsewhere = _LoopThread(coroutine)
    try:
        elsewhere.start()
        result: Result = elsewhere.result()
        return result
    finally:
        elsewhere.end()


def iterate(open_stream: Callable[[], AsyncIterator[Item]]) -> Iterator[Item]:
    """What an asynchronous iterator gives, one by one, in blocking code. Leaving the loop early closes it."""
    items: queue.Queue[tuple[Item] | None] = queue.Queue()
    free = threading.Semaphore(AHEAD)

    async def feed() -> None:
        stream = open_stream()
        try:
            async for item in stream:
                while not free.acquire(blocking=False):  # noqa: ASYNC110 — another thread reads
                    await asyncio.sleep(LOOK_SECONDS)
                items.put((item,))
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()
            items.put(None)

    elsewhere = _LoopThread(feed())
    try:
        elsewhere.start()
        while True:
            try:
                got = items.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                elsewhere.look()
                continue
            if got is None:
                elsewhere.result()
                return
            free.release()
            yield got[0]
    finally:
        elsewhere.end()


class _LoopThread:
    """A coroutine on a loop and a thread of its own, from `start` to `end`.

    Both stand in one `try`: a Ctrl-C may come while `start` waits, too, and the coroutine runs by then.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self._done: Future[Any] = Future()
        self._task: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()
        self._caller = asyncio.current_task() if _in_a_loop() else None
        self._cancelled_before = self._caller.cancelling() if self._caller is not None else 0
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="taskapp-client", daemon=True)

    def result(self) -> Any:
        """Waits for it. Raises what it raised, or CancelledError when the calling task was cancelled meanwhile."""
        while True:
            try:
                return self._done.result(LOOK_SECONDS)
            except NotYet:
                if self._done.done():  # a TimeoutError of its own
                    raise
                self.look()

    def look(self) -> None:
        """Raises CancelledError when the calling task was cancelled: a first Ctrl-C under asyncio.run says so only there."""
        if self._caller is not None and self._caller.cancelling() > self._cancelled_before:
            raise asyncio.CancelledError

    def start(self) -> None:
        """Returns when it runs."""
        self._thread.start()
        self._started.wait()

    def end(self) -> None:
        """Cancels it, if it still runs, and waits for it."""
        if self._thread.ident is None:  # it never came to that
            self._coroutine.close()
            return
        self._started.wait()
        loop, task = self._loop, self._task
        if loop is not None and task is not None and not self._done.done():
            with suppress(RuntimeError):  # the loop was closed at this very moment
                loop.call_soon_threadsafe(task.cancel)
        self._thread.join()

    def _run(self) -> None:
        async def held() -> Any:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            self._started.set()
            return await self._coroutine

        try:
            self._done.set_result(asyncio.run(held()))
        except BaseException as error:
            self._done.set_exception(error)
        finally:
            self._started.set()


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
