"""Binds a port for an in-process task app, starts the server, and waits until the app is healthy."""

from __future__ import annotations

import errno
import logging
import socket
import threading
from typing import TYPE_CHECKING

from taskapp_kit.client.checks import ProbeResult
from taskapp_kit.deploy.health_check import ASK_SECONDS, REFUSED, ask_health, in_words, key_headers
from taskapp_kit.errors import ConfigError, KitError, TaskAppError
from taskapp_kit.net.retry import Attempts, Backoff

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from taskapp_kit.serve.uvicorn_server import BackgroundServer

log = logging.getLogger("taskapp_kit.deploy")

PORTS_TRIED = 100
GRACE_SECONDS = 5
"""How many seconds running requests may take to finish when the server stops."""
EVEN = Backoff(first_seconds=0.1, growth=1.0)
NO_KEY = "missing_environment_api_key"


def take_port(host: str, port: int, *, search: bool) -> socket.socket:
    """Return a listening socket on this port or, if `search` is set, on the next free port.

    The socket is already listening, so two programs that search at the same time never use the same port.

    Raises:
        ConfigError: No port is free, or the host is not an address of this machine.
    """
    from taskapp_kit.serve.uvicorn_server import BACKLOG, bind

    last = min(port + PORTS_TRIED - 1, 65_535) if search and port else port
    for candidate in range(port, last + 1):
        try:
            bound = bind(host, candidate)
        except ConfigError as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in (
                errno.EADDRINUSE,
                errno.EACCES,
            ):
                raise  # this machine does not have the address, so other ports would also fail
            continue
        try:
            bound.listen(BACKLOG)
        except OSError:  # another program took the port between bind and listen
            bound.close()
            continue
        if port and candidate != port:
            log.info("port %d on %s is in use, so the task app listens on port %d", port, host, candidate)
        return bound
    if last > port:
        raise ConfigError(
            f"No port between {port} and {last} on {host} is free.", hint="Pass port=0 to use any free port."
        )
    raise ConfigError(
        f"Port {port} on {host} is in use by another program.",
        hint="Stop that program, pass another port, or pass auto_find_port=True to use the next free port.",
    )


def start_server(
    app: ASGIApp, bound: socket.socket, *, name: str, host: str, seconds: float, leave: threading.Event
) -> BackgroundServer:
    """Start the server. If the app fails to start, raise its KitError, or a TaskAppError for any other exception."""
    from taskapp_kit.serve.uvicorn_server import BackgroundServer

    server = BackgroundServer(app, host=host, bound=bound, grace_seconds=GRACE_SECONDS)
    try:
        server.start(seconds, leave=leave)
    except RuntimeError as error:
        cause = error.__cause__
        if isinstance(cause, KitError):
            raise cause from None
        if cause is None or isinstance(cause, SystemExit):
            raise TaskAppError(f"Task app {name} did not start. {error}") from None
        raise TaskAppError(
            f"Task app {name} did not start: {type(cause).__name__}: {cause}.", hint="Fix the startup code of the app."
        ) from cause
    except BaseException:  # Ctrl-C
        server.stop(0.0)
        raise
    return server


def wait_until_well(
    server: BackgroundServer,
    url: str,
    key: str | None,
    *,
    name: str,
    ours: bool,
    seconds: float,
    leave: threading.Event,
) -> ProbeResult:
    """Wait until `/health` returns 200. Raises TaskAppError after `seconds`, or if waiting longer cannot help."""
    attempts = Attempts(EVEN, seconds=seconds)
    while True:
        answer = ask_health(url, key_headers(key), seconds=min(ASK_SECONDS, max(0.1, attempts.left)))
        if answer.status == 200:
            return answer
        if not server.running:
            failure = server.failure
            why = "" if failure is None else f": {type(failure).__name__}: {failure}"
            raise TaskAppError(f"The server of task app {name} stopped immediately after the start{why}.") from failure
        problem = _final(answer, name, key, ours)
        if problem is not None:
            raise problem
        pause = attempts.pause()
        if pause is None or leave.wait(pause):
            raise TaskAppError(
                f"Task app {name} was not healthy within {seconds:g} s. GET {url}/health: {in_words(answer)}.",
                status=answer.status,
                hint="Check the log of the app, or pass a longer health_check_timeout=.",
            )


def _final(answer: ProbeResult, name: str, key: str | None, ours: bool) -> TaskAppError | None:
    """Return the error for a response that waiting cannot change, or None for other responses."""
    reads = "the app reads ENVIRONMENT_API_KEY from the environment of this process for each request"
    if answer.status == 503 and answer.code == NO_KEY:
        return TaskAppError(
            f"Task app {name} is running, but has no API key. ENVIRONMENT_API_KEY is not set in this process.",
            status=503,
            code=NO_KEY,
            hint="Set ENVIRONMENT_API_KEY before the task app starts. api_key= has an effect only on a TaskApp.",
        )
    if answer.status in REFUSED:
        rejected = "its key" if key else "requests without a key"
        hint = (
            ""
            if ours
            else f"Set ENVIRONMENT_API_KEY to the key that the app expects, or pass api_key=. Usually {reads}."
        )
        return TaskAppError(
            f"Task app {name} is running, but rejects {rejected} (HTTP {answer.status}).",
            status=answer.status,
            code=answer.code,
            hint=hint,
        )
    if answer.status in (404, 405):
        return TaskAppError(
            f"Task app {name} is running, but GET /health returns HTTP {answer.status}.",
            status=answer.status,
            hint="Check that the application is a task app, which has the routes /health, /task_info and /rollout.",
        )
    return None
