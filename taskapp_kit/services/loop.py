"""The event loop of all services: one daemon thread of this process, so that services are used from any loop and thread."""

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
    """Callbacks from other threads for one loop. Those that come before it looks share one waking of its thread, which
    costs more than a call does."""

    def __init__(self) -> None:
        self._callbacks: deque[Callable[[], None]] = deque()
        self._woken = False

    def post(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        """Have the loop run it, unless it is closed."""
        if loop.is_closed():
            return
        self._callbacks.append(callback)
        if not self._woken:
            self._woken = True
            loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._woken = False  # first: what comes after this look wakes the loop again
        while self._callbacks:
            self._callbacks.popleft()()


_inboxes: WeakKeyDictionary[asyncio.AbstractEventLoop, _Inbox] = WeakKeyDictionary()


def _inbox(loop: asyncio.AbstractEventLoop) -> _Inbox:
    found = _inboxes.get(loop)
    if found is None:
        with _lock:
            found = _inboxes.setdefault(loop, _Inbox())
    return found


def services_loop() -> asyncio.AbstractEventLoop:
    """Return the loop; the first call starts it. It runs until the process ends, and the replicas with it."""
    return _daemon_loop().loop


def _daemon_loop() -> DaemonLoop:
    global _thread
    with _lock:
        if _thread is None:
            _thread = DaemonLoop("taskapp-services")
        return _thread


async def on_services_loop(work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of the work, which runs on the loop of services. Cancelling cancels the work.

    As `asyncio.wrap_future(asyncio.run_coroutine_threadsafe(…))`, at half of its cost where calls come together.
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
        error = ended.exception()  # read also after the caller has left: asyncio logs one that nothing has read
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
    """Return the result of the work, for a thread without an event loop. Raises ServiceError in a thread that runs one."""
    if _runs_a_loop():
        work.close()
        raise ServiceError(
            "A blocking call of a service would stop this thread's event loop.", hint="Await `route` instead."
        )
    return _daemon_loop().run(work)


def _runs_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
