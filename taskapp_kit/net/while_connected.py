"""Work for a request that ends when its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

from taskapp_kit.errors import KitError
from taskapp_kit.net.error_response import ClientGone

if TYPE_CHECKING:
    from starlette.types import Receive

WATCH_AFTER_SECONDS = 0.1
"""Shorter work does not start a task that watches whether the client disconnects."""

T = TypeVar("T")


async def while_connected(work: Awaitable[T], receive: Receive) -> T:
    """Await `work`, and cancel it when the client disconnects; then raise ClientGone. The body has been received."""
    task = asyncio.current_task()
    assert task is not None
    gone = False
    watcher: asyncio.Task[None] | None = None

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()

    def start() -> None:
        nonlocal watcher
        watcher = asyncio.create_task(watch())

    timer = asyncio.get_running_loop().call_later(WATCH_AFTER_SECONDS, start)
    try:
        done = await work
    except (asyncio.CancelledError, KitError):
        if not gone:
            raise
    else:
        if not gone:
            return done
    finally:
        timer.cancel()
        if watcher is not None:
            watcher.cancel()
    task.uncancel()
    raise ClientGone
