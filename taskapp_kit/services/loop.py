"""The event loop of all services: one daemon thread of this process, so that services are used from any loop and thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from taskapp_kit.errors import ServiceError

Result = TypeVar("Result")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def services_loop() -> asyncio.AbstractEventLoop:
    """Return the loop; the first call starts it. It runs until the process ends, and the replicas with it."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="taskapp-services", daemon=True).start()
        return _loop


async def on_services_loop(work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of the work, which runs on the loop of services. Cancelling cancels the work."""
    loop = services_loop()
    if asyncio.get_running_loop() is loop:
        return await work
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))


def wait_on_services_loop(work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of the work, for a thread without an event loop. Raises ServiceError in a thread that runs one."""
    if _runs_a_loop():
        work.close()
        raise ServiceError(
            "A blocking call of a service would stop this thread's event loop.", hint="Await `route` instead."
        )
    future = asyncio.run_coroutine_threadsafe(work, services_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _runs_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
