"""An aiohttp application that listens on a loop and a thread of its own, so that blocking clients can be tried, too."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web


@contextmanager
def listening(app: web.Application, port: int = 0) -> Iterator[str]:
    """Its address, while it listens on loopback."""
    ready = threading.Event()
    where: list[str] = []
    stop: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port, reuse_address=True)
        await site.start()
        over = asyncio.Event()
        stop.append((asyncio.get_running_loop(), over))
        where.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        ready.set()
        await over.wait()
        await runner.cleanup()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield where[0]
    finally:
        loop, over = stop[0]
        loop.call_soon_threadsafe(over.set)
        thread.join(30)


def drop(request: web.Request) -> web.Response:
    """The connection ends here and now, without an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()
