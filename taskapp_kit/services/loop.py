"""The event loop of all services. It runs on a daemon thread, so any event loop and any thread can use services."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from taskapp_kit.client.blocking_portal import DaemonLoop
from taskapp_kit.errors import ServiceError

Result = TypeVar("Result")

_lock = threading.Lock()
_thread: DaemonLoop | None = None


class _Inbox:
    """Callbacks that other threads post to one event loop.

    All callbacks that arrive before the loop runs them share one wake-up of the loop's thread. A wake-up costs
    more than running a callback.
    """

    def __init__(self) -> None:
        self._callbacks: deque[Callable[[], None]] = deque()
        self._woken = False

    def post(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        """Run a callback on the loop. If the loop is closed, do nothing."""
        if loop.is_closed():
            return
        self._callbacks.append(callback)
        if not self._woken:
            self._woken = True
            loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._woken = False  # cleared before the callbacks run, so that later callbacks wake the loop again
        while self._callbacks:
            self._callbacks.popleft()()


_inboxes: WeakKeyDictionary[asyncio.AbstractEventLoop, _Inbox] = WeakKeyDictionary()


def _inbox(loop: asyncio.AbstractEventLoop) -> _Inbox:
    inbox = _inboxes.get(loop)
    if inbox is None:
        with _lock:
            inbox = _inboxes.setdefault(loop, _Inbox())
    return inbox


def services_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all services. The first call starts it, and it runs until the process ends."""
    return _daemon_loop().loop


def _daemon_loop() -> DaemonLoop:
    global _thread
    with _lock:
        if _thread is None:
            _thread = DaemonLoop("taskapp-services")
        return _thread


async def on_services_loop(work: Coroutine[Any, Any, Result]) -> Result:
    """Run `work` on the loop of services and return its result. Cancelling this call cancels the work.

    The function does the same as `asyncio.wrap_future(asyncio.run_coroutine_threadsafe(…))`, but concurrent calls cost half as
    much.
    """
    services, here = services_loop(), asyncio.get_running_loop()
    if here is services:
        return await work
    there, back = _inbox(services), _inbox(here)
    context = contextvars.copy_context()
    answer: asyncio.Future[Result] = here.create_future()
    running: asyncio.Task[Result] | None = None

    def begin() -> None:
        nonlocal running
        if answer.cancelled():
            work.close()
        else:
            running = services.create_task(work, context=context)
            running.add_done_callback(lambda ended: back.post(here, lambda: settle(ended)))

    def settle(ended: asyncio.Task[Result]) -> None:
        if ended.cancelled():
            answer.cancel()
            return
        error = ended.exception()  # also if the caller is gone, because asyncio logs unretrieved exceptions
        if answer.done():
            return
        if error is None:
            answer.set_result(ended.result())
        else:
            answer.set_exception(error)

    def cancel() -> None:
        if running is not None:
            running.cancel()

    there.post(services, begin)
    try:
        return await answer
    except asyncio.CancelledError:
        there.post(services, cancel)
        raise


def wait_on_services_loop(work: Coroutine[Any, Any, Result]) -> Result:
    """Run `work` on the loop of services and block for its result. Raises ServiceError inside a running event loop."""
    if _runs_a_loop():
        work.close()
        raise ServiceError(
            "A blocking call of a service was made inside a running event loop.", hint="Await `route` instead."
        )
    return _daemon_loop().run(work)


def _runs_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
