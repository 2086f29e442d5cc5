"""Runs a task app in the program that trains on it, with a server in a thread and, optionally, a tunnel.

    async with InProcessTaskApp(task_app_path="my_task_app.py", port=8114) as task_app:
        job = RLJob.from_config("rl_config.toml", task_app_url=task_app.url, task_app_api_key=task_app.api_key)

A `with` block without `async` does the same. At the end of the block, the server, the tunnel and the store are closed,
even after an exception. Importing this module has no side effects.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from taskapp_kit.config import Settings, from_environment, process_variable
from taskapp_kit.config.parsers import MAX_KEY_BYTES
from taskapp_kit.deploy.health_check import health_fields
from taskapp_kit.deploy.local.app_source import AppSource, check_sources, find_source
from taskapp_kit.deploy.local.local_server import GRACE_SECONDS, start_server, take_port, wait_until_well
from taskapp_kit.deploy.tunnel.open_tunnel import Tunnel, open_tunnel
from taskapp_kit.deploy.tunnel.tunnel_settings import Timing, plan_tunnel
from taskapp_kit.errors import BadArgument, ConfigError

if TYPE_CHECKING:
    from taskapp_kit.serve.uvicorn_server import BackgroundServer

log = logging.getLogger("taskapp_kit.deploy")

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (documented options)
"""The loopback address for each address that means all interfaces."""
HOSTS = ("127.0.0.1", "localhost", "::1", *EVERYWHERE)
STOP_SECONDS = 30.0
"""How many seconds the server may take to stop before its running requests are cancelled."""

Callback = Callable[["InProcessTaskApp"], Any]


class InProcessTaskApp:
    """A server that serves a task app during a `with` block.

    Pass exactly one of app, config, config_factory and task_app_path.

    Args:
        app: A TaskApp, or any ASGI application.
        config: A config of Synth's package, which must be installed.
        config_factory: A function that returns a config of Synth's package.
        task_app_path: A file, such as `adder.py` or `adder.py:app`, or the name of a bundled app.
        port: Port to listen on, or 0 for any free port.
        host: Address to listen on. With 0.0.0.0 or another address for all interfaces, other machines can reach the
            app.
        tunnel_mode: Kind of tunnel: "auto", "local", "quick", "named" or "preconfigured". See
            `deploy/tunnel/tunnel_settings.py`.
        preconfigured_url: An existing public address at which this app is reachable.
        preconfigured_auth_header: Name of a header that the preconfigured address requires.
        preconfigured_auth_token: Value of this header.
        api_key: API key. Defaults to ENVIRONMENT_API_KEY. If the variable is not set, a TaskApp uses a new key for this
            run.
        health_check_timeout: Number of seconds within which the app must become healthy.
        auto_find_port: Whether to use one of the next hundred ports if the port is in use.
        skip_tunnel_verification: Whether to use the tunnel without testing it.
        on_start: Function that is called with this object when the app is ready. It may be async in `async with`. If it
            raises, everything is closed and the exception propagates.
        on_stop: Function that is called with this object before the app is stopped. An exception that it raises
            propagates. If the block itself has raised, the exception of `on_stop` is logged instead.
        backend_url: Address of the backend. With `tunnel_mode="auto"`, it determines whether a tunnel is needed.
        tunnel_hostname: Host name of a named tunnel.
        tunnel_token: Token of a named tunnel.
        cloudflared: Name or path of the cloudflared program.
        timing: Timeouts of the tunnel. Defaults to the SYNTH_TUNNEL_… variables.

    Raises:
        BadArgument: An argument is invalid. The constructor raises this error; the following errors are raised on
            entering the block. BadArgument is a ConfigError and a ValueError.
        DiscoveryError: The app's file cannot be found or imported.
        DeclarationError: The app's declarations are invalid.
        ConfigError: The port is not available.
        TaskAppError: The app is not healthy.
        TunnelError: The tunnel could not be opened.
    """

    def __init__(
        self,
        *,
        app: Any = None,
        config: Any = None,
        config_factory: Callable[[], Any] | None = None,
        task_app_path: str | Path | None = None,
        port: int = 8114,
        host: str = "127.0.0.1",
        tunnel_mode: str = "auto",
        preconfigured_url: str | None = None,
        preconfigured_auth_header: str | None = None,
        preconfigured_auth_token: str | None = None,
        api_key: str | None = None,
        health_check_timeout: float = 30.0,
        auto_find_port: bool = True,
        skip_tunnel_verification: bool = False,
        on_start: Callback | None = None,
        on_stop: Callback | None = None,
        backend_url: str | None = None,
        tunnel_hostname: str | None = None,
        tunnel_token: str | None = None,
        cloudflared: str | Path = "cloudflared",
        timing: Timing | None = None,
    ) -> None:
        check_sources(app=app, config=config, config_factory=config_factory, task_app_path=task_app_path)
        if isinstance(port, bool) or not isinstance(port, int) or not (port == 0 or 1024 <= port <= 65_535):
            raise BadArgument("port is invalid. Expected an integer from 1024 to 65535, or 0 for any free port.")
        if host not in HOSTS:
            raise BadArgument(f"host {str(host)[:60]!r} is not supported. Expected one of {', '.join(HOSTS)}.")
        if not 0 < health_check_timeout < math.inf:
            raise BadArgument("health_check_timeout is invalid. Expected a number of seconds above 0.")
        if api_key is not None:
            _check_key(api_key)
        self._sources = {
            "app": app,
            "config": config,
            "config_factory": config_factory,
            "task_app_path": task_app_path,
        }
        self._plan = plan_tunnel(
            tunnel_mode,
            backend_url=backend_url,
            preconfigured_url=preconfigured_url,
            preconfigured_auth_header=preconfigured_auth_header,
            preconfigured_auth_token=preconfigured_auth_token,
            hostname=tunnel_hostname,
            token=tunnel_token,
            cloudflared=cloudflared,
            skip_verification=skip_tunnel_verification,
            timing=timing,
        )
        self._host, self._wanted_port, self._search = host, port, auto_find_port
        self._given_key, self._health_seconds = api_key, health_check_timeout
        self._on_start, self._on_stop = on_start, on_stop
        self._key: str | None = None
        self._minted = False
        self._server: BackgroundServer | None = None
        self._tunnel: Tunnel | None = None
        self._leave = threading.Event()
        self._running = self._stopping = False

    @property
    def url(self) -> str:
        """The address for the backend: the tunnel's address, or the local address without a tunnel.

        Raises:
            ConfigError: The app is not running.
        """
        if self._tunnel is None:
            raise _not_running("url")
        return self._tunnel.url

    @property
    def local_url(self) -> str:
        """The address on this machine.

        Raises:
            ConfigError: The app is not running.
        """
        from taskapp_kit.serve.uvicorn_server import url_of

        if self._server is None:
            raise _not_running("local_url")
        return url_of(EVERYWHERE.get(self._host, self._host), self._server.port)

    @property
    def port(self) -> int:
        """The port on which the server listens. Before the start, the requested port."""
        return self._wanted_port if self._server is None else self._server.port

    @property
    def api_key(self) -> str | None:
        """The API key, or None before the start. It is also None if the app is not a TaskApp and no key is set."""
        return self._key

    @property
    def key_was_minted(self) -> bool:
        """Whether the key was created for this run, in which case no other program has the key."""
        return self._minted

    @property
    def tunnel_mode(self) -> str:
        """The selected kind of tunnel: local, quick, named or preconfigured."""
        return self._plan.way

    def __repr__(self) -> str:
        where = "not running" if self._tunnel is None else f"at {self._tunnel.url}"
        return f"<InProcessTaskApp {where}>"

    def start(self) -> None:
        """Start the app and call `on_start`. Blocks the calling thread. The caller must call `stop` later."""
        self._hold()
        try:
            self._open(self._source())
            self._call_now(self._on_start, "on_start")
        except BaseException:
            self._close()
            raise

    def stop(self) -> None:
        """Call `on_stop` and close everything. Further calls have no effect."""
        if not self._running or self._stopping:
            return
        self._stopping = True
        try:
            self._call_now(self._on_stop, "on_stop")
        finally:
            self._close()

    async def start_async(self) -> None:
        """Do the same as `start` without blocking the event loop.

        If the call is cancelled, everything that was opened is closed before CancelledError is raised.
        """
        self._hold()
        try:
            source = self._source()  # in this thread, as some imports require
            await self._elsewhere(lambda: self._open(source))
            await self._call(self._on_start)
        except BaseException:
            # `_elsewhere` has waited for the thread, even after a cancellation, so nothing is opened while closing.
            await self._elsewhere(self._close)
            raise

    async def stop_async(self) -> None:
        """Do the same as `stop` without blocking the event loop."""
        if not self._running or self._stopping:
            return
        self._stopping = True
        try:
            await self._call(self._on_stop)
        finally:
            await self._elsewhere(self._close)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except Exception:
            if error is None:
                raise
            log.exception("on_stop failed, after the block had raised %s", type(error).__name__)

    async def __aenter__(self) -> Self:
        await self.start_async()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.stop_async()
        except Exception:
            if error is None:
                raise
            log.exception("on_stop failed, after the block had raised %s", type(error).__name__)

    def _hold(self) -> None:
        if self._running:
            raise BadArgument("This InProcessTaskApp is already running. Create a new object for a second server.")
        self._running, self._stopping = True, False
        self._leave.clear()

    def _source(self) -> AppSource:
        return find_source(**self._sources)

    def _open(self, source: AppSource) -> None:
        """Start the server and open the tunnel, without calling callbacks. Blocks, and may run in any thread."""
        settings = self._settings(source)
        fixed = self._plan.way in ("named", "preconfigured")  # the public address forwards only to this port
        bound = take_port(self._host, self._wanted_port, search=self._search and not fixed)
        try:
            # "local" serves /docs and permits models on this machine, so other machines must not be able to connect
            alone = self._plan.way == "local" and self._host not in EVERYWHERE
            asgi = source.asgi(settings, "local" if alone else "public")
            self._server = start_server(
                asgi, bound, name=source.name, host=self._host, seconds=self._health_seconds, leave=self._leave
            )
        except BaseException:
            bound.close()
            raise
        health = wait_until_well(
            self._server,
            self.local_url,
            self._key,
            name=source.name,
            ours=source.ours,
            seconds=self._health_seconds,
            leave=self._leave,
        )
        log.info("task app %s runs at %s (tunnel: %s; %s)", source.name, self.local_url, self._plan.way, self._plan.why)
        self._tunnel = open_tunnel(self._plan, self.local_url, self._key, health_fields(health), self._leave)

    def _settings(self, source: AppSource) -> Settings:
        """Return the settings in the process environment, with the API key of this run."""
        settings = from_environment()
        self._key = self._given_key or process_variable("ENVIRONMENT_API_KEY")
        self._minted = self._key is None and source.ours
        if self._minted:
            self._key = secrets.token_hex(32)
        return replace(
            settings,
            environment_api_key=self._key,
            # short, because the program waits until the server has ended
            grace_seconds=min(settings.grace_seconds, GRACE_SECONDS),
            hosts=(*settings.hosts, *self._plan.hosts),
        )

    def _close(self) -> None:
        tunnel, server = self._tunnel, self._server
        self._tunnel = None
        try:
            if tunnel is not None:
                tunnel.close()
        finally:
            try:
                if server is not None and not server.stop(STOP_SECONDS):
                    log.error(
                        "the task app does not stop and still uses port %d, because it blocks the server's thread",
                        server.port,
                    )
            except BaseException:  # Ctrl-C ends the wait
                if server is not None:
                    server.stop(0.0)
                raise
            finally:
                self._server = None
                self._running = False

    def _call_now(self, callback: Callback | None, name: str) -> None:
        result = None if callback is None else callback(self)
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise BadArgument(f"{name} is an async function. Use `async with`, or pass a plain function.")

    async def _call(self, callback: Callback | None) -> None:
        result = None if callback is None else callback(self)
        if inspect.isawaitable(result):
            await result

    async def _elsewhere(self, work: Callable[[], None]) -> None:
        """Run `work` in another thread.

        If the calling asyncio task is cancelled, signal `work` to stop and wait for its end.
        """
        running = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            self._leave.set()
            while not running.done():  # even if cancelled again, because the caller then closes what was opened
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([running])
            if not running.cancelled():
                running.exception()  # retrieved, so that asyncio does not log it
            raise


def _not_running(name: str) -> ConfigError:
    return BadArgument(
        f"{name} is not available because the task app is not running.", hint=f"Read {name} inside the `with` block."
    )


def _check_key(key: str) -> None:
    clean = isinstance(key, str) and key == key.strip() and key.isprintable() and "," not in key
    if not clean or not 0 < len(key.encode()) <= MAX_KEY_BYTES:
        raise BadArgument(
            f"api_key is invalid. Expected one key of at most {MAX_KEY_BYTES} bytes, without commas, control characters or "
            "surrounding whitespace."
        )
