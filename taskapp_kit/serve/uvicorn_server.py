"""Runs uvicorn for the command line, or in the background for tests, demos and tunnels."""

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
"""For how many seconds requests may continue after a signal. Modal kills the process after 30 s."""
START_SECONDS = 30.0
POLL_SECONDS = 0.1
CANCEL_SECONDS = 5.0
"""How many seconds a server may take to handle its cancellation after the grace period."""
PONG_SECONDS = 600.0
"""After how many seconds without a pong a WebSocket ends. A client that is waiting for its model may send no pongs."""
FULL_SECONDS = 0.02
"""How many seconds a LoopServer waits before it tries again to accept a connection."""
BACKLOG = 2048
"""How many connections the operating system queues until the server accepts them."""


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
    """Serve an application until SIGINT or SIGTERM.

    The server writes no access log, because its lines would contain query strings. The kit logs one line per rollout.

    Args:
        app: An ASGI application, or its `module:attribute`, which `reload` requires.
        host: Host name or address to listen on.
        port: Port to listen on. With 0, the operating system chooses a free port.
        log_level: Level of the log.
        log_format: Format of the log.
        grace_seconds: For how many seconds requests may continue after a signal.
        drain: Function that is awaited with `grace_seconds` after the first signal, while the server still accepts
            requests. A second signal ends the grace period.
        factory: Whether `app` is a function that returns the application.
        reload: Whether the server restarts when a file changes.
        reload_dirs: Directories that `reload` watches.
        announce: Function that is called with the server's address, `http://host:port`, as soon as clients can connect.
        limits: Limits on connections.

    Raises:
        KeyboardInterrupt: SIGINT ended the server.
        ConfigError: The host or port cannot be used.
    """
    log_to_stderr(log_level, log_format)
    # bound here, because uvicorn exits if the port is in use, and because `announce` needs the port that replaces 0
    bound = bind(host, port)
    try:
        # while the app starts, connections wait in the queue instead of being refused
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
    """Return a socket that is bound to host and port.

    With port 0, the operating system chooses a free port.

    Raises:
        ConfigError: The host cannot be resolved or is not an address of this machine, or the port cannot be used.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(
            f"Host {host!r} cannot be resolved to an address: {error.strerror}.", hint="Try --host 127.0.0.1."
        ) from error
    try:
        # so that a port can be reused immediately after a server has ended
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise ConfigError(
            f"Port {port} on {host} cannot be used: {error.strerror}.",
            hint="If another server uses this port, stop it, or pass another --port. --port 0 chooses a free port.",
        ) from error
    # with `--reload`, a child process serves on this socket
    bound.set_inheritable(True)
    return bound


def bound_to_this_machine(host: str) -> bool:
    """Return whether a server on this host is reachable only locally. Raises ConfigError if the host cannot be resolved."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise ConfigError(
            f"Host {host[:80]!r} cannot be resolved to an address.", hint="Try --host 127.0.0.1."
        ) from None
    return all(ipaddress.ip_address(str(item[4][0]).partition("%")[0]).is_loopback for item in found)


def _tune_garbage_collector() -> None:
    """Exempt objects that exist at startup from garbage collection, and collect garbage less often.

    Objects that exist at startup live as long as the server. Rollouts create thousands of objects but few reference
    cycles. The change reduced the CPU time of a small rollout by a quarter and its p99 latency by two thirds; see
    docs/operate/performance.md.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def url_of(host: str, port: int) -> str:
    """Return `http://host:port`."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def log_to_stderr(log_level: str, log_format: LogFormat = "text") -> None:
    """Write the log records of this process and its worker processes to stderr, one per line.

    Only commands call this function, because a library must not configure logging.
    """
    configure(log_level, log_format)
    set_child_logging(log_format=log_format, log_level=log_level)


def _options(grace_seconds: int, limits: ConnectionLimits | None) -> dict[str, Any]:
    # uvicorn's own options do not limit all states of a connection, queued requests or unsent responses
    connections = Connections(limits)
    return {
        "http": partial(BoundedHttp, connections),
        "ws": partial(BoundedWebSocket, connections),
        "callback_notify": connections.look,
        "timeout_notify": -math.inf,  # call it once a second, even if the clock was set back
        "ws_ping_timeout": PONG_SECONDS,
        "ws_per_message_deflate": False,  # frames are short, and images already compressed
        "log_config": None,
        "access_log": False,
        # no Server header, which would reveal the software to scanners
        "server_header": False,
        # ignores X-Forwarded-For, which anyone can send; nothing depends on the client's address
        "proxy_headers": False,
        "timeout_keep_alive": math.ceil(connections.limits.idle_seconds),
        "timeout_graceful_shutdown": grace_seconds,
    }


class BackgroundServer:
    """Runs uvicorn in a thread: `with BackgroundServer(app) as server: httpx.get(server.url)`.

    Entering the context waits until the server is ready. Leaving the context stops the server and waits for its
    thread. The server does not install signal handlers.

    Args:
        app: The ASGI application.
        host: Host name or address to listen on.
        port: Port to listen on. With 0, the operating system chooses a free port.
        grace_seconds: For how many seconds requests may continue when the server is stopped.
        bound: A socket that is already bound, which replaces host and port.
        limits: Limits on connections.

    Raises:
        ConfigError: The host or port cannot be used.
        RuntimeError: Entering the context failed because the app did not start. The cause is the app's exception.
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
        # replaces Thread.join and is_alive, because in Python 3.11 Ctrl-C during join marks the thread as ended
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
        """Return the exception that ended the server or that the app raised at startup or shutdown. None if there was none."""
        return self._app.failure or self._failure

    def start(self, seconds: float = START_SECONDS, *, leave: threading.Event | None = None) -> None:
        """Start the thread and wait until the server is ready.

        Raises RuntimeError if the server does not start, if `seconds` pass, or if `leave` is set while waiting.
        """
        self._thread.start()
        end = time.monotonic() + seconds
        while not self._server.announced.wait(min(POLL_SECONDS, max(0.0, end - time.monotonic()))):
            # polls, because `leave` may be set while waiting
            if time.monotonic() >= end or (leave is not None and leave.is_set()):
                self.stop(0.0)
                raise RuntimeError(
                    f"The server on port {self.port} did not start within {seconds:g} s, because "
                    "the application has not finished its startup."
                )
        if not self._server.started:
            self.stop()
            failure = self.failure
            why = "the log contains the reason"
            if failure is not None and not isinstance(failure, SystemExit):  # raised by uvicorn after logging the error
                why = f"{type(failure).__name__}: {failure}".rstrip(": ")
            raise RuntimeError(f"The server on port {self.port} did not start: {why}.") from failure

    def stop(self, seconds: float | None = None) -> bool:
        """Stop the server after running requests have finished or the grace period has ended. Further calls do nothing.

        Args:
            seconds: After this time, the asyncio tasks on the server's event loop are cancelled. None means no limit.

        Returns:
            Whether the thread has ended. If it is False, some code blocks the thread, and the port remains in use.
        """
        # uvicorn's main loop reads this flag ten times a second
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
        except BaseException as failure:  # SystemExit if the app did not start
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

    Args:
        app: The ASGI application.
        bound: A listening socket, which `stop` closes.
        limits: Limits on connections. When the maximum number of connections or requests is reached, new connections
            wait in the socket's queue.
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
        """Start accepting connections."""
        self._bound.setblocking(False)
        self._tasks = [asyncio.create_task(self._accept()), asyncio.create_task(self._look())]

    def stop(self) -> None:
        """End all connections and cancel their requests."""
        for task in self._tasks:
            task.cancel()
        for connection in list(self._state.connections):
            # abort, because unsent bytes are useless after the end of the client's rollout
            connection.transport.abort()
        for request in list(self._state.tasks):
            request.cancel()
        self._bound.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            with suppress(OSError):  # out of file descriptors, or the client has disconnected
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
    """A server that accepts requests while it drains. uvicorn's server stops accepting connections at the first signal.

    While draining, `/health` reports `draining`, and trainers receive a response with `Retry-After`.
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
        """Drain at the first signal, end the grace period at the second signal, and exit at the third."""
        self._signals += 1
        # a third signal means that the operator does not want to wait
        if self._drain is None or self._loop is None or self._signals > 2:
            super().handle_exit(sig, frame)
            return
        grace_seconds = self._grace_seconds if self._signals == 1 else 0.0
        # not called directly, because a signal handler must not change the loop's tasks
        self._loop.call_soon_threadsafe(self._begin, self._drain, grace_seconds, sig, frame)

    def _begin(
        self, drain: Callable[[float], Awaitable[None]], grace_seconds: float, sig: int, frame: FrameType | None
    ) -> None:
        async def drained() -> None:
            try:
                await drain(grace_seconds)
            finally:
                if sig == signal.SIGINT and not self.should_exit:  # raises KeyboardInterrupt later
                    super(Draining, self).handle_exit(sig, frame)
                self.should_exit = True  # SIGTERM is a regular end

        self._drains.append(asyncio.create_task(drained()))


class _Announcing(uvicorn.Server):
    """A server that sets the event `announced` when it has started, and that can be cancelled."""

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
        """Stop the server from another thread, without waiting for requests."""
        self.force_exit = True
        if self._loop is not None and self._serving is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._serving.cancel)


class _RecordingApp:
    """Wraps an application to store an exception of its startup or shutdown, which uvicorn only logs."""

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
