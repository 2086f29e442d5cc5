"""The local part of an in-process task app: binds a port, starts a server on it, and waits until it is healthy."""

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
"""The time that running requests have to finish when the server stops."""
EVEN = Backoff(first_seconds=0.1, growth=1.0)
NO_KEY = "missing_environment_api_key"


def take_port(host: str, port: int, *, search: bool) -> socket.socket:
    """A listening socket on this port or, with `search`, on the next free one. No other program's port is taken over.

    It listens at once, so that two programs which search at the same time never get the same one. Raises ConfigError.
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
                raise  # another port does not help: this machine has no such address
            continue
        try:
            bound.listen(BACKLOG)
        except OSError:  # another program was faster between bind and listen
            bound.close()
            continue
        if port and candidate != port:
            log.info("port %d on %s is taken; the task app listens on %d", port, host, candidate)
        return bound
    if last > port:
        raise ConfigError(f"No port from {port} to {last} on {host} can be had.", hint="Give another port, or 0.")
    raise ConfigError(
        f"Port {port} on {host} cannot be had: another program uses it.",
        hint="Stop that server, give another port, or use the next free one with auto_find_port=True.",
    )


def start_server(
    app: ASGIApp, bound: socket.socket, *, name: str, host: str, seconds: float, leave: threading.Event
) -> BackgroundServer:
    """Starts the server. Raises the error of the app's own startup, as TaskAppError unless it is an error of the kit."""
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
            f"Task app {name} did not start: {type(cause).__name__}: {cause}.", hint="Fix its startup code."
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
    """Waits for a healthy response of `/health`. Raises TaskAppError with the cause, as soon as it is known."""
    attempts = Attempts(EVEN, seconds=seconds)
    while True:
        answer = ask_health(url, key_headers(key), seconds=min(ASK_SECONDS, max(0.1, attempts.left)))
        if answer.status == 200:
            return answer
        if not server.running:
            failure = server.failure
            why = "" if failure is None else f": {type(failure).__name__}: {failure}"
            raise TaskAppError(f"The server of task app {name} ended right after its start{why}.") from failure
        problem = _final(answer, name, key, ours)
        if problem is not None:
            raise problem
        pause = attempts.pause()
        if pause is None or leave.wait(pause):
            raise TaskAppError(
                f"Task app {name} was not healthy within {seconds:g} s: GET {url}/health: {in_words(answer)}.",
                status=answer.status,
                hint="Check its log; health_check_timeout= gives it more time.",
            )


def _final(answer: ProbeResult, name: str, key: str | None, ours: bool) -> TaskAppError | None:
    """The error of a response that waiting cannot change; None for others."""
    reads = "it reads ENVIRONMENT_API_KEY from the environment of this process at each request"
    if answer.status == 503 and answer.code == NO_KEY:
        return TaskAppError(
            f"Task app {name} runs, but no key is configured for it: {reads}, and there is none.",
            status=503,
            code=NO_KEY,
            hint="Set ENVIRONMENT_API_KEY before the task app starts; api_key= alone reaches TaskApps of the kit only.",
        )
    if answer.status in REFUSED:
        why = "the key that it was given" if key else "to answer without a key"
        hint = (
            ""
            if ours
            else f"Set ENVIRONMENT_API_KEY to the key that the app was made with, or pass it; usually {reads}."
        )
        return TaskAppError(
            f"Task app {name} runs, but refuses {why} (HTTP {answer.status}).",
            status=answer.status,
            code=answer.code,
            hint=hint,
        )
    if answer.status in (404, 405):
        return TaskAppError(
            f"Task app {name} runs, but GET /health answers HTTP {answer.status}; a task app has that route.",
            status=answer.status,
            hint="Serve a task app: jobs call /health, /task_info and /rollout.",
        )
    return None
