"""uvicorn, run for the command line (blocking) or in the background of a test, a demo or a tunnel."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import signal
import socket
import threading
from collections.abc import Awaitable, Callable
from types import FrameType, TracebackType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from taskapp_kit.config import tell_children
from taskapp_kit.errors import ConfigError
from taskapp_kit.logs import LogFormat, configure

KEEP_ALIVE_SECONDS = 30
"""Longer than clients keep an idle connection, so that it is they who close it."""
GRACE_SECONDS = 25
"""How long requests may go on after a signal; Modal kills after 30."""
START_SECONDS = 30.0
BACKLOG = 2048
"""Connections that wait until the server takes them."""


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
) -> None:
    """Serves until SIGINT (which comes out as KeyboardInterrupt) or SIGTERM. Raises ConfigError: the address is taken.

    drain: what is awaited first then, while requests are still answered; it gets `grace_seconds`. A second signal cuts
    it short.
    announce: is given the server's address (`http://host:port`) once it is held: callers from then on are answered.
    app: an ASGI application, or `module:attribute` of one (needed for `reload`). There is no access log: its lines
    would hold query strings; the kit logs one line for each rollout instead.
    """
    log_to_stderr(log_level, log_format)
    bound = bind(host, port)
    try:
        bound.listen(BACKLOG)
        if announce is not None:
            announce(url_of(host, bound.getsockname()[1]))
        config = uvicorn.Config(app, factory=factory, reload=reload, reload_dirs=reload_dirs, **_options(grace_seconds))
        server = Draining(config, drain, grace_seconds)
        if reload:
            from uvicorn.supervisors import ChangeReload

            ChangeReload(config, target=server.run, sockets=[bound]).run()
        else:
            _spare_the_collector()
            server.run(sockets=[bound])
    finally:
        bound.close()


def bind(host: str, port: int) -> socket.socket:
    """A listening address, held from now on; port 0 takes a free one. Raises ConfigError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(
            f"Host {host!r} is no address here: {error.strerror}.", hint="Try --host 127.0.0.1."
        ) from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise ConfigError(
            f"Port {port} on {host} cannot be had: {error.strerror}.",
            hint="Another server may run there: stop it, or give another --port (0 takes a free one).",
        ) from None
    bound.set_inheritable(True)
    return bound


def _spare_the_collector() -> None:
    """What is loaded by now lives as long as the server: the garbage collector need not walk it again and again.

    A rollout makes thousands of objects and few cycles, so younger generations are looked at less often too: a small
    rollout's CPU fell by a quarter, its p99 by two thirds (docs/performance.md).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def url_of(host: str, port: int) -> str:
    """`http://host:port`, without a slash at its end."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def log_to_stderr(log_level: str, log_format: LogFormat = "text") -> None:
    """Log records of this process and of its worker processes go to stderr, one a line, in this form.

    Called by commands; a library never configures logging.
    """
    configure(log_level, log_format)
    tell_children(log_format=log_format, log_level=log_level)


def _options(grace_seconds: int) -> dict[str, Any]:
    options: dict[str, Any] = {
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "timeout_keep_alive": KEEP_ALIVE_SECONDS,
        "timeout_graceful_shutdown": grace_seconds,
        "h11_max_incomplete_event_size": 64 * 1024,
    }
    if importlib.util.find_spec("httptools") is not None:
        from taskapp_kit.serve.limits import BoundedHttp

        options["http"] = BoundedHttp
    return options


class BackgroundServer:
    """A real uvicorn on a thread of its own: `with BackgroundServer(app) as server: httpx.get(server.url)`.

    Entering waits until the server answers; leaving stops it and waits for its thread. No signal handler is touched.
    port 0 takes a free one. Raises ConfigError when the address is taken, RuntimeError when the app does not start.
    """

    def __init__(self, app: ASGIApp, *, host: str = "127.0.0.1", port: int = 0, grace_seconds: int = 5) -> None:
        self._socket = bind(host, port)
        self.host: str = host
        self.port: int = self._socket.getsockname()[1]
        self._server = _Announcing(uvicorn.Config(app, **_options(grace_seconds)))
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"taskapp-server-{self.port}", daemon=True)

    @property
    def url(self) -> str:
        """The server's address, without a slash at its end."""
        return url_of(self.host, self.port)

    def start(self) -> None:
        """Starts the thread and waits until the server answers."""
        self._thread.start()
        if not self._server.announced.wait(START_SECONDS) or not self._server.started:
            self.stop()
            raise RuntimeError(f"The server on port {self.port} did not start; its log says why.") from self._failure

    def stop(self) -> None:
        """Lets running requests finish within the grace period, then ends the thread. May be called twice."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except BaseException as failure:  # SystemExit is how uvicorn says that the app did not start
            self._failure = failure
        finally:
            self._server.announced.set()

    def __enter__(self) -> BackgroundServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Draining(uvicorn.Server):
    """Answers on while it drains: uvicorn itself closes its doors at the first signal.

    So somebody who asks for `/health` reads `draining`, and a trainer is told to come back instead of finding nobody.
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
        """Starts listening."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal begins to drain, the second one ends the grace, the third one ends at once."""
        self._signals += 1
        if self._drain is None or self._loop is None or self._signals > 2:
            super().handle_exit(sig, frame)
            return
        grace_seconds = self._grace_seconds if self._signals == 1 else 0.0
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
                self.should_exit = True  # a drained SIGTERM is an end like any other

        self._drains.append(asyncio.create_task(drained()))


class _Announcing(uvicorn.Server):
    """Says when it has started."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.announced = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts listening."""
        await super().startup(sockets)
        self.announced.set()
