"""A task app inside the program that trains on it: a thread with a server, a port, and optionally a tunnel.

    async with InProcessTaskApp(task_app_path="my_task_app.py", port=8114) as task_app:
        job = RLJob.from_config("rl_config.toml", task_app_url=task_app.url, task_app_api_key=task_app.api_key)

A plain `with` block does the same. Importing this module has no side effects. However the block ends, it releases the port,
the thread, the tunnel and the store.
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

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (the guide offers them)
"""Maps an address that means all interfaces to the loopback address."""
HOSTS = ("127.0.0.1", "localhost", "::1", *EVERYWHERE)
STOP_SECONDS = 30.0
"""How long the server may take to end before its running requests are cancelled."""

Callback = Callable[["InProcessTaskApp"], Any]


class InProcessTaskApp:
    """A server for one task app, which runs while the `with` block runs.

    Pass exactly one of app, config, config_factory and task_app_path.

    Args:
        app: A TaskApp, or any ASGI application.
        config: A config of Synth's package, which must be installed.
        config_factory: A function that returns such a config.
        task_app_path: A file (`adder.py`, `adder.py:app`) or a bundled name; see `app_source.py`.
        port: The port to listen on, or 0 for any free one.
        host: The interface. An address that means all interfaces makes the app public.
        tunnel_mode: The kind of tunnel; see `deploy/tunnel/tunnel_settings.py`, also for the arguments that begin with
            preconfigured_ and tunnel_, cloudflared and skip_tunnel_verification.
        preconfigured_url: An address that already leads here.
        preconfigured_auth_header: A header that this address requires.
        preconfigured_auth_token: The header's value.
        api_key: The API key. Defaults to ENVIRONMENT_API_KEY or, for a TaskApp without it, to a new key for this run.
        health_check_timeout: Seconds within which the app must become healthy.
        auto_find_port: Whether to use one of the next hundred ports if the port is taken.
        skip_tunnel_verification: Whether to use the tunnel without a test.
        on_start: Called with this object when everything is open; may be async in `async with`. An exception closes
            everything and propagates.
        on_stop: Called with this object before anything closes. An exception propagates, or is logged if the block
            itself has raised.
        backend_url: The backend, which decides in mode "auto" whether a tunnel is needed.
        tunnel_hostname: The host name of a named tunnel.
        tunnel_token: The token of a named tunnel.
        cloudflared: The cloudflared program.
        timing: The tunnel's timeouts. Defaults to the SYNTH_TUNNEL_… variables.

    Raises:
        BadArgument: An argument is invalid. It is a ConfigError and a ValueError. The other errors are raised on entering
            the block.
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
        """The address for a backend: the tunnel's, or the local one. Raises ConfigError if the app is not running."""
        if self._tunnel is None:
            raise _not_running("url")
        return self._tunnel.url

    @property
    def local_url(self) -> str:
        """The address on this machine. Raises ConfigError if the app is not running."""
        from taskapp_kit.serve.uvicorn_server import url_of

        if self._server is None:
            raise _not_running("local_url")
        return url_of(EVERYWHERE.get(self._host, self._host), self._server.port)

    @property
    def port(self) -> int:
        """The port that it listens on; before the start, the requested port."""
        return self._wanted_port if self._server is None else self._server.port

    @property
    def api_key(self) -> str | None:
        """The API key. None before the start, and for an app of another kind without ENVIRONMENT_API_KEY."""
        return self._key

    @property
    def key_was_minted(self) -> bool:
        """Whether the key was created for this run, so that no other program knows it."""
        return self._minted

    @property
    def tunnel_mode(self) -> str:
        """The selected kind of tunnel: local, quick, named or preconfigured."""
        return self._plan.way

    def __repr__(self) -> str:
        where = "not running" if self._tunnel is None else f"at {self._tunnel.url}"
        return f"<InProcessTaskApp {where}>"

    def start(self) -> None:
        """Open everything and call on_start. Blocks. The caller must also call `stop`."""
        self._hold()
        try:
            self._open(self._source())
            self._call_now(self._on_start, "on_start")
        except BaseException:
            self._close()
            raise

    def stop(self) -> None:
        """Call on_stop and close everything. A second call has no effect."""
        if not self._running or self._stopping:
            return
        self._stopping = True
        try:
            self._call_now(self._on_stop, "on_stop")
        finally:
            self._close()

    async def start_async(self) -> None:
        """Like `start`, without blocking the event loop. A cancellation is raised after everything is closed."""
        self._hold()
        try:
            source = self._source()  # in this thread, which some imports require
            await self._elsewhere(lambda: self._open(source))
            await self._call(self._on_start)
        except BaseException:
            # By now the thread has ended, even after a cancellation, so nothing opens while this closes.
            await self._elsewhere(self._close)
            raise

    async def stop_async(self) -> None:
        """Like `stop`, without blocking the event loop."""
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
            raise BadArgument("This InProcessTaskApp is already running. Create another one for a second server.")
        self._running, self._stopping = True, False
        self._leave.clear()

    def _source(self) -> AppSource:
        return find_source(**self._sources)

    def _open(self, source: AppSource) -> None:
        """Open everything, without calling the callbacks. Blocks; runs on any thread."""
        settings = self._settings(source)
        fixed = self._plan.way in ("named", "preconfigured")  # the public address leads to this port only
        bound = take_port(self._host, self._wanted_port, search=self._search and not fixed)
        try:
            # "local" serves /docs and lets rollouts call models on this machine, so no other machine may connect
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
        """Return the environment's settings with this run's API key. An app of another kind brings its own key."""
        settings = from_environment()
        self._key = self._given_key or process_variable("ENVIRONMENT_API_KEY")
        self._minted = self._key is None and source.ours
        if self._minted:
            self._key = secrets.token_hex(32)
        return replace(
            settings,
            environment_api_key=self._key,
            # The program waits until the server has ended, so the long grace period of a deployment would delay it.
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
                        "the task app does not stop and still uses port %d: its code blocks the server's thread",
                        server.port,
                    )
            except BaseException:  # Ctrl-C: no more waiting
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
            raise BadArgument(f"{name} is async. Use `async with`, or pass a plain function.")

    async def _call(self, callback: Callback | None) -> None:
        result = None if callback is None else callback(self)
        if inspect.isawaitable(result):
            await result

    async def _elsewhere(self, work: Callable[[], None]) -> None:
        """Run `work` in another thread. If the waiting task is cancelled, signal `work` to stop and wait for its end."""
        running = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            self._leave.set()
            while not running.done():  # even if cancelled again, because the caller then closes what the thread opened
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([running])
            if not running.cancelled():
                running.exception()  # retrieved, so that asyncio does not log it: the caller was cancelled
            raise


def _not_running(name: str) -> ConfigError:
    return BadArgument(
        f"{name} is not available because the task app is not running.", hint="Read it inside the with block."
    )


def _check_key(key: str) -> None:
    clean = isinstance(key, str) and key == key.strip() and key.isprintable() and "," not in key
    if not clean or not 0 < len(key.encode()) <= MAX_KEY_BYTES:
        raise BadArgument(
            f"api_key is invalid. Expected one key of at most {MAX_KEY_BYTES} bytes, without commas, control characters or "
            "surrounding whitespace."
        )
