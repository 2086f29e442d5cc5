"""Opens and tests the tunnel that `tunnel_settings.py` has selected, and runs the cloudflared process of the tunnel.

The test requests `/health` through the tunnel, with the app's API key.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from taskapp_kit.config import child_environment
from taskapp_kit.deploy.health_check import REFUSED, ask_health, health_fields, in_words, key_headers
from taskapp_kit.deploy.tunnel.tunnel_settings import INSTALL, TunnelPlan
from taskapp_kit.errors import TunnelError
from taskapp_kit.net.redact import without_whole
from taskapp_kit.system.child import OwnedProcess

QUICK_ADDRESS = re.compile(r"https://(?!api\.|www\.)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.trycloudflare\.com(?![\w.-])")
"""The address of the tunnel in cloudflared's log. Error messages may contain the host `api.…`, which must not match."""
PASSED_ON = frozenset(
    {"PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR"}
    | {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"}
)
"""The variables that cloudflared inherits besides its own settings. None of these variables contains a key."""
OTHER_TUNNELS = frozenset(
    f"TUNNEL_{name}" for name in ("TOKEN", "TOKEN_FILE", "NAME", "HOSTNAME", "URL", "CRED_FILE", "CRED_CONTENTS")
)
"""Settings of cloudflared that select a tunnel, which cloudflared would open instead of the requested tunnel."""
END_SECONDS = 3.0
"""How many seconds cloudflared may take to disconnect before it is killed."""


class Cloudflared(OwnedProcess[str]):
    """The cloudflared process.

    Args:
        arguments: Full path of the program, followed by its arguments.
        secret: Environment variables that only the cloudflared process receives.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(self, arguments: Sequence[str], *, secret: Mapping[str, str] | None = None) -> None:
        secrets = dict(secret or {})
        self.address: str | None = None
        self._closing = False
        super().__init__(
            arguments,
            env={**_environment(), **secrets},
            name="taskapp-tunnel",
            clean=lambda line: without_whole(line, secrets.values(), "…"),
            ready=_address_in,
            on_exit=self._report_end,
            end_seconds=END_SECONDS,
        )

    @property
    def last_words(self) -> str:
        """The last line of output that reports an error, or else the last line. Empty if there was no output."""
        lines = self.lines
        complaints = [line for line in lines if re.search(r"\b(ERR|FTL|error|failed)\b", line, re.IGNORECASE)]
        return (complaints or lines or [""])[-1]

    def wait_for_address(self, seconds: float, leave: threading.Event) -> str | None:
        """Return the address that cloudflared prints, or None if cloudflared ends, time is up or `leave` is set."""
        self.address = self.wait_ready(seconds, leave)
        return self.address

    def close(self) -> None:
        """Stop the process and its children. Further calls have no effect."""
        self._closing = True
        super().close()

    def _report_end(self, status: int) -> None:
        if not self._closing and self.address is not None:
            log.error("the tunnel %s ended, because cloudflared exited with status %s", self.address, status)


def _address_in(line: str) -> str | None:
    address = QUICK_ADDRESS.search(line)
    return None if address is None else address[0]


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in child_environment().items()
        if name in PASSED_ON or (name.startswith("TUNNEL_") and name not in OTHER_TUNNELS)
    }


log = logging.getLogger("taskapp_kit.deploy")


@dataclass(frozen=True, slots=True)
class Tunnel:
    """An open tunnel. `url` is the address for the backend, without a trailing slash."""

    url: str
    close: Callable[[], None] = field(repr=False)


def open_tunnel(
    plan: TunnelPlan, local_url: str, key: str | None, seen: frozenset[str] | None, leave: threading.Event
) -> Tunnel:
    """Open and test the tunnel. Blocks the calling thread.

    Args:
        plan: The tunnel to open.
        local_url: The local address of the task app.
        key: The API key of the task app.
        seen: The field names in the app's own response to `/health`, or None if they are unknown.
        leave: If this event is set while the function waits, the function raises TunnelError.

    Raises:
        TunnelError: The tunnel could not be opened, or the test failed.
    """
    if plan.way == "local":
        return Tunnel(local_url, _nothing)
    if plan.way == "preconfigured":
        assert plan.url is not None
        problem = _verify(plan, plan.url, key, seen, leave)
        if problem:
            raise TunnelError(
                f"The task app on {local_url} is not reachable at {plan.url}: {problem}.",
                hint="Check the address. If it requires a login, pass preconfigured_auth_header. To skip this check, pass "
                "skip_tunnel_verification=True.",
            )
        return Tunnel(plan.url, _nothing)
    problem, hint = "", ""
    for attempt in range(plan.timing.attempts):
        if attempt and leave.wait(plan.timing.pause_seconds):
            break
        opened, problem, hint = _attempt(plan, local_url, key, seen, leave)
        if opened is not None:
            log.info("%s is reachable at %s", local_url, opened.url)
            return opened
        log.warning("tunnel attempt %d of %d: %s", attempt + 1, plan.timing.attempts, problem)
    times = "once" if plan.timing.attempts == 1 else f"{plan.timing.attempts} times"
    raise TunnelError(
        f"The {plan.way} tunnel to {local_url} could not be opened (tried {times}): {problem}.", hint=hint
    )


def _attempt(
    plan: TunnelPlan, local_url: str, key: str | None, seen: frozenset[str] | None, leave: threading.Event
) -> tuple[Tunnel | None, str, str]:
    """Try to open the tunnel once. Return the tunnel and two empty strings, or None, the problem and a hint."""
    # ignores the config file in the home directory, whose last rule usually returns 404
    arguments = [plan.program, "tunnel", "--no-autoupdate", "--config", os.devnull, "--url", local_url]
    try:
        if plan.token is None:
            process = Cloudflared(arguments)
        else:  # in a variable, because all users of the machine can read arguments
            process = Cloudflared([*arguments, "run"], secret={"TUNNEL_TOKEN": plan.token})
    except OSError as error:
        return None, f"{plan.program} cannot be started ({error.strerror})", INSTALL
    try:
        url = plan.url or process.wait_for_address(plan.timing.address_seconds, leave)
        problem = _no_address(plan, process) if url is None else _verify(plan, url, key, seen, leave, process)
    except BaseException:
        process.close()
        raise
    if url is not None and not problem:
        return Tunnel(url, process.close), "", ""
    process.close()
    if plan.way == "named":
        return None, problem, f"Check the token, and that the tunnel's host name is routed to {local_url}."
    return None, problem, "Quick tunnels are not guaranteed to work. Try again, or use a named or preconfigured tunnel."


def _no_address(plan: TunnelPlan, process: Cloudflared) -> str:
    if process.ended.is_set():
        return _ended(process)
    words = process.last_words
    problem = f"cloudflared printed no address within {plan.timing.address_seconds:g} s"
    return problem + (f". Its last output was: {words}" if words else "")


def _ended(process: Cloudflared) -> str:
    words = process.last_words
    return f"cloudflared ended with status {process.status}" + (f": {words}" if words else "")


def _verify(
    plan: TunnelPlan,
    url: str,
    key: str | None,
    seen: frozenset[str] | None,
    leave: threading.Event,
    process: Cloudflared | None = None,
) -> str:
    """Return the problem with the address, or "" if the task app responds there or `plan` skips the test."""
    if not plan.verify:
        return _ended(process) if process is not None and process.ended.wait(0.1) else ""
    timing, problem = plan.timing, "no request was sent"
    headers = {**key_headers(key), **plan.headers}
    begun = time.monotonic()
    for number in range(timing.tries):
        if leave.wait(timing.pause_seconds if number else timing.first_seconds):
            return "the test was interrupted"
        if process is not None and process.ended.is_set():
            return _ended(process)
        answer = ask_health(url, headers, check_tls=timing.check_tls)
        problem = f"GET {url}/health: {in_words(answer)}"
        if answer.status == 200 and (seen is None or seen == health_fields(answer)):
            return ""
        if answer.status == 200:
            return f"{problem}, but the response is from a different server"
        if answer.status in REFUSED:
            return f"{problem}. The key was rejected, probably by another server or a login page in front of the app"
        if 300 <= answer.status < 400:
            return f"{problem}. The response is a redirect, so a login page may be in front of the app"
    tries = "1 try" if timing.tries == 1 else f"{timing.tries} tries"
    return f"{problem} ({tries} in {time.monotonic() - begun:.0f} s)"


def _nothing() -> None:
    """Do nothing. Used to close tunnels that have no process."""
