"""uvicorn, run for the command line (blocking) or in the background of a test, a demo or a tunnel."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import math
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from types import FrameType, TracebackType
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState
from uvicorn.supervisors import ChangeReload

from taskapp_kit.config import set_child_logging
from taskapp_kit.errors import ConfigError
from taskapp_kit.logs import LogFormat, configure
from taskapp_kit.serve.connection_limits import ConnectionLimits, Connections
from taskapp_kit.serve.uvicorn_protocol import BoundedHttp, BoundedWebSocket

GRACE_SECONDS = 25
"""How long requests may continue after a signal; Modal kills the process after 30."""
START_SECONDS = 30.0
POLL_SECONDS = 0.1
CANCEL_SECONDS = 5.0
"""How long a server may take to handle its cancellation after the grace period."""
PONG_SECONDS = 600.0
"""How long a WebSocket client may leave pings unanswered; a program that waits for its model may not answer them."""
FULL_SECONDS = 0.02
"""How long a LoopServer that cannot accept a connection waits before it tries again."""
BACKLOG = 2048
"""How many connections the system queues until the server accepts them."""


def run(
    app: ASGIApp | str,
    *,
    host: str = "127.0.0.1",
    port: int = 8001,
    log_level: str = "info",
    log_format: LogFormat = "text",
    grace_seconds: int = GRACE_SECONDS,
    drain: Callable[[float], Awaitable[None]] | None = None,
    factory: bool = False,
    reload: bool = False,
    reload_dirs: list[str] | None = None,
    announce: Callable[[str], None] | None = None,
    limits: ConnectionLimits | None = None,
) -> None:
    """Serve until SIGINT (raised as KeyboardInterrupt) or SIGTERM.

    app: an ASGI application, or `module:attribute` of one (needed for `reload`).
    drain: awaited with `grace_seconds` after the first signal, while requests are still answered. A second signal cuts
    it short.
    announce: called with the server's address (`http://host:port`) once it is bound: connections succeed from then on.
    limits: of connections.

    The server writes no access log, whose lines would contain query strings. The kit logs one line per rollout instead.
    """
    log_to_stderr(log_level, log_format)
    # before uvicorn, which ends the process if the port is taken; also, the port is then known if it was 0
    bound = bind(host, port)
    try:
        # connections that arrive while the app starts wait in the queue instead of being refused
        bound.listen(BACKLOG)
        if announce is not None:
            announce(url_of(host, bound.getsockname()[1]))
        config = uvicorn.Config(
            app, factory=factory, reload=reload, reload_dirs=reload_dirs, **_options(grace_seconds, limits)
        )
        server = Draining(config, drain, grace_seconds)
        if reload:
            ChangeReload(config, target=server.run, sockets=[bound]).run()
        else:
            _tune_garbage_collector()
            server.run(sockets=[bound])
    finally:
        bound.close()


def bind(host: str, port: int) -> socket.socket:
    """Bind and return a socket; port 0 takes a free one. Raises ConfigError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(
            f"Host {host!r} is not an address of this machine: {error.strerror}.", hint="Try --host 127.0.0.1."
        ) from error
    try:
        # so that a port is free immediately after a server with connections has ended
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise ConfigError(
            f"Port {port} on {host} cannot be used: {error.strerror}.",
            hint="Stop the server that uses it, or pass another --port (0 takes a free port).",
        ) from error
    # `--reload` passes it to the process that serves
    bound.set_inheritable(True)
    return bound


def bound_to_this_machine(host: str) -> bool:
    """Return whether only this machine can reach a server on this host. Raises ConfigError for an unknown host name."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise ConfigError(
            f"Host {host[:80]!r} is not an address of this machine.", hint="Try --host 127.0.0.1."
        ) from None
    return all(ipaddress.ip_address(str(item[4][0]).partition("%")[0]).is_loopback for item in found)


def _tune_garbage_collector() -> None:
    """Exempt the objects that exist at startup, which live as long as the server, from garbage collection.

    A rollout creates thousands of objects and few cycles, so younger generations are also collected less often. This
    reduced the CPU time of a small rollout by a quarter and its p99 by two thirds (docs/operate/performance.md).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def url_of(host: str, port: int) -> str:
    """Return `http://host:port`."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def log_to_stderr(log_level: str, log_format: LogFormat = "text") -> None:
    """Send the log records of this process and its worker processes to stderr, one per line.

    Called by commands; a library never configures logging.
    """
    configure(log_level, log_format)
    set_child_logging(log_format=log_format, log_level=log_level)


def _options(grace_seconds: int, limits: ConnectionLimits | None) -> dict[str, Any]:
    # uvicorn's options do not limit the time of every state, queued requests or unsent answers
    connections = Connections(limits)
    return {
        "http": partial(BoundedHttp, connections),
        "ws": partial(BoundedWebSocket, connections),
        "callback_notify": connections.look,
        "timeout_notify": -math.inf,  # call it in each tick, once a second, even if the system clock was set back
        "ws_ping_timeout": PONG_SECONDS,
        "ws_per_message_deflate": False,  # most frames are shorter than a packet, and images are already compressed
        "log_config": None,
        "access_log": False,
        # scanners should not learn what runs here
        "server_header": False,
        # anyone can send X-Forwarded-For, and nothing here depends on a client's address
        "proxy_headers": False,
        "timeout_keep_alive": math.ceil(connections.limits.idle_seconds),
        "timeout_graceful_shutdown": grace_seconds,
    }


class BackgroundServer:
    """Runs uvicorn in a thread: `with BackgroundServer(app) as server: httpx.get(server.url)`.

    Entering waits until the server answers; leaving stops it and waits for its thread. It does not install signal handlers.
    port: 0 takes a free one. bound: a socket that is bound already, instead of host and port. limits: of connections.
    Raises ConfigError when the address is in use, and RuntimeError, with the app's own exception as its cause, when the
    app does not start.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        grace_seconds: int = 5,
        bound: socket.socket | None = None,
        limits: ConnectionLimits | None = None,
    ) -> None:
        self._socket = bound if bound is not None else bind(host, port)
        self.host: str = host
        self.port: int = self._socket.getsockname()[1]
        self._app = _RecordingApp(app)
        self._server = _Announcing(uvicorn.Config(self._app, **_options(grace_seconds, limits)))
        self._failure: BaseException | None = None
        # instead of Thread.join and is_alive: in Python 3.11 a join that Ctrl-C interrupts marks the thread as ended
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"taskapp-server-{self.port}", daemon=True)

    @property
    def url(self) -> str:
        """Return the server's address, without a trailing slash."""
        return url_of(self.host, self.port)

    @property
    def running(self) -> bool:
        """Return whether the server's thread is alive."""
        return self._thread.ident is not None and not self._ended.is_set()

    @property
    def failure(self) -> BaseException | None:
        """Return the exception that ended the server, or that the app's startup or shutdown raised."""
        return self._app.failure or self._failure

    def start(self, seconds: float = START_SECONDS, *, leave: threading.Event | None = None) -> None:
        """Start the thread and wait until the server answers, at most this long, or until `leave` is set."""
        self._thread.start()
        end = time.monotonic() + seconds
        while not self._server.announced.wait(min(POLL_SECONDS, max(0.0, end - time.monotonic()))):
            # polled, because `leave` may be set while waiting
            if time.monotonic() >= end or (leave is not None and leave.is_set()):
                self.stop(0.0)
                raise RuntimeError(
                    f"The server on port {self.port} did not start within {seconds:g} s: "
                    "the application is still starting."
                )
        if not self._server.started:
            self.stop()
            failure = self.failure
            why = "its log has the reason"
            if failure is not None and not isinstance(failure, SystemExit):  # uvicorn raises it after logging the error
                why = f"{type(failure).__name__}: {failure}".rstrip(": ")
            raise RuntimeError(f"The server on port {self.port} did not start; {why}.") from failure

    def stop(self, seconds: float | None = None) -> bool:
        """Let running requests finish within the grace period, then end the thread. Calling it again does nothing.

        After `seconds` (None: no limit) the tasks on the server's loop are cancelled. Returns False if the thread, which
        holds the port, is still alive because some code blocks it.
        """
        # uvicorn's main loop reads it ten times a second, so no call into the loop is needed
        self._server.should_exit = True
        if self.running and not self._ended.wait(seconds):
            self._server.cancel()
            self._ended.wait(CANCEL_SECONDS)
        self._socket.close()
        if self._ended.is_set():
            self._thread.join()
        return not self.running

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except BaseException as failure:  # SystemExit: the app did not start
            self._failure = failure
        finally:
            self._server.announced.set()
            self._ended.set()

    def __enter__(self) -> BackgroundServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class LoopServer:
    """Serves an application on the running event loop, without a thread, between `start` and `stop`.

    bound: a listening socket, which `stop` closes. limits: the limits on connections; beyond them, and while the maximum
    number of requests runs, connections wait in the socket's queue.
    """

    def __init__(self, app: ASGIApp, bound: socket.socket, limits: ConnectionLimits) -> None:
        self._bound = bound
        self._connections = Connections(limits)
        self._config = uvicorn.Config(
            app, interface="asgi3", ws="none", lifespan="off", log_config=None, proxy_headers=False
        )
        self._state = ServerState()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to accept connections."""
        self._bound.setblocking(False)
        self._tasks = [asyncio.create_task(self._accept()), asyncio.create_task(self._look())]

    def stop(self) -> None:
        """End all connections and cancel their requests."""
        for task in self._tasks:
            task.cancel()
        for connection in list(self._state.connections):
            # a client's unsent and unread bytes are useless once its rollout has ended
            connection.transport.abort()
        for request in list(self._state.tasks):
            request.cancel()
        self._bound.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            with suppress(OSError):  # the process is out of descriptors, or the client has gone
                if max(len(self._connections), len(self._state.tasks)) < self._connections.cap:
                    connection, _ = await loop.sock_accept(self._bound)
                    await loop.connect_accepted_socket(self._protocol, connection)
                    continue
            await asyncio.sleep(FULL_SECONDS)

    def _protocol(self) -> BoundedHttp:
        return BoundedHttp(self._connections, self._config, self._state, {})

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(1)
            await self._connections.look()


class Draining(uvicorn.Server):
    """A server that answers while it drains; uvicorn's own stops accepting connections at the first signal.

    So `/health` reports `draining`, and a trainer gets a response that tells it to retry.
    """

    def __init__(
        self, config: uvicorn.Config, drain: Callable[[float], Awaitable[None]] | None, grace_seconds: float
    ) -> None:
        super().__init__(config)
        self._drain = drain
        self._grace_seconds = grace_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drains: list[asyncio.Task[None]] = []
        self._signals = 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, end the grace period at the second, exit at the third."""
        self._signals += 1
        # a third signal means that the operator does not want to wait
        if self._drain is None or self._loop is None or self._signals > 2:
            super().handle_exit(sig, frame)
            return
        grace_seconds = self._grace_seconds if self._signals == 1 else 0.0
        # a signal handler runs between any two instructions, and must not touch the loop's tasks
        self._loop.call_soon_threadsafe(self._begin, self._drain, grace_seconds, sig, frame)

    def _begin(
        self, drain: Callable[[float], Awaitable[None]], grace_seconds: float, sig: int, frame: FrameType | None
    ) -> None:
        async def drained() -> None:
            try:
                await drain(grace_seconds)
            finally:
                if sig == signal.SIGINT and not self.should_exit:  # comes out as KeyboardInterrupt
                    super(Draining, self).handle_exit(sig, frame)
                self.should_exit = True  # a drained SIGTERM is a regular end

        self._drains.append(asyncio.create_task(drained()))


class _Announcing(uvicorn.Server):
    """A server that sets `announced` when it has started, and can be cancelled."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.announced = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: asyncio.Task[object] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening."""
        self._loop, self._serving = asyncio.get_running_loop(), asyncio.current_task()
        await super().startup(sockets)
        self.announced.set()

    def cancel(self) -> None:
        """End the server from another thread without waiting for requests."""
        self.force_exit = True
        if self._loop is not None and self._serving is not None:
            with suppress(RuntimeError):  # the loop has just been closed
                self._loop.call_soon_threadsafe(self._serving.cancel)


class _RecordingApp:
    """An application that stores the exception of its startup, which uvicorn only logs."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.failure: BaseException | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except BaseException as failure:
            if scope["type"] == "lifespan":
                self.failure = failure
            raise
