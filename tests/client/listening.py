"""An aiohttp application that listens on a loop and a thread of its own, so that blocking clients can be tried, too."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
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


@contextmanager
def raw(
    serve: Callable[[socket.socket], None], heads: list[bytes] | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """A socket: each connection is handed to `serve`, which may do with it what it likes, when its request has come.

    heads: gets what was asked, up to the blank line.
    """
    listener = socket.create_server(("127.0.0.1", 0))

    def one(connection: socket.socket) -> None:
        with connection:
            head = b""
            try:
                if tls is not None:
                    connection = tls.wrap_socket(connection, server_side=True)
                while b"\r\n\r\n" not in head and (more := connection.recv(65536)):
                    head += more
                if heads is not None:
                    heads.append(head)
                serve(connection)
            except OSError:
                pass

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=one, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
