"""Opens and tests the tunnel that `tunnel_settings.py` selected; and the cloudflared process behind it.

`/health` is requested with the key through the tunnel before its address is returned. Nothing is created at Cloudflare or a
backend except by cloudflared itself.
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
"""The address in a box of log lines; `api.` is whom cloudflared asks for one, and stands in its errors."""
PASSED_ON = frozenset(
    {"PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR"}
    | {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"}
)
"""Of our variables it gets these, and its own settings: no key of anybody."""
OTHER_TUNNELS = frozenset(
    f"TUNNEL_{name}" for name in ("TOKEN", "TOKEN_FILE", "NAME", "HOSTNAME", "URL", "CRED_FILE", "CRED_CONTENTS")
)
"""Settings of its own that name a tunnel: it would open that one instead of the one that it is started for."""
END_SECONDS = 3.0
"""The time that it has to disconnect from Cloudflare before it is killed."""


class Cloudflared(OwnedProcess[str]):
    """The cloudflared process. arguments: the program's full path first. secret: variables that go to it alone.

    Raises OSError when no process can be started.
    """

    def __init__(self, arguments: Sequence[str], *, secret: Mapping[str, str] | None = None) -> None:
        secrets = dict(secret or {})
        self.address: str | None = None
        """As it was printed."""
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
        """The last line in which it complains, else its last line; "" when it said nothing."""
        lines = self.lines
        complaints = [line for line in lines if re.search(r"\b(ERR|FTL|error|failed)\b", line, re.IGNORECASE)]
        return (complaints or lines or [""])[-1]

    def wait_for_address(self, seconds: float, leave: threading.Event) -> str | None:
        """The address that it prints; None when it ends, or the time does, or `leave` is set."""
        self.address = self.wait_ready(seconds, leave)
        return self.address

    def close(self) -> None:
        """Ends it and whatever it started. May be called twice."""
        self._closing = True
        super().close()

    def _report_end(self, status: int) -> None:
        if not self._closing and self.address is not None:
            log.error("the tunnel %s ended (cloudflared, exit status %s)", self.address, status)


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
    """An open way in. url: the address for a backend, without a slash at its end."""

    url: str
    close: Callable[[], None] = field(repr=False)


def open_tunnel(
    plan: TunnelPlan, local_url: str, key: str | None, seen: frozenset[str] | None, leave: threading.Event
) -> Tunnel:
    """Opens and tries it; blocks. Raises TunnelError.

    seen: the fields of the app's own answer, None if they are not known. leave: ends the waiting.
    """
    if plan.way == "local":
        return Tunnel(local_url, _nothing)
    if plan.way == "preconfigured":
        assert plan.url is not None
        problem = _verify(plan, plan.url, key, seen, leave)
        if problem:
            raise TunnelError(
                f"{plan.url} does not lead to the task app on {local_url}: {problem}.",
                hint="Check the address and what stands before it (preconfigured_auth_header), or pass "
                "skip_tunnel_verification=True.",
            )
        return Tunnel(plan.url, _nothing)
    problem, hint = "", ""
    for attempt in range(plan.timing.attempts):
        if attempt and leave.wait(plan.timing.pause_seconds):
            break
        opened, problem, hint = _attempt(plan, local_url, key, seen, leave)
        if opened is not None:
            log.info("%s is reached at %s", local_url, opened.url)
            return opened
        log.warning("tunnel attempt %d of %d: %s", attempt + 1, plan.timing.attempts, problem)
    times = "once" if plan.timing.attempts == 1 else f"{plan.timing.attempts} times"
    raise TunnelError(f"No {plan.way} tunnel to {local_url}, tried {times}; at last: {problem}.", hint=hint)


def _attempt(
    plan: TunnelPlan, local_url: str, key: str | None, seen: frozenset[str] | None, leave: threading.Event
) -> tuple[Tunnel | None, str, str]:
    """The open tunnel, or the problem and a hint."""
    # a config file in the home folder would answer in the app's place: its last rule is usually "404"
    arguments = [plan.program, "tunnel", "--no-autoupdate", "--config", os.devnull, "--url", local_url]
    try:
        if plan.token is None:
            process = Cloudflared(arguments)
        else:  # not among the arguments, which every user of the machine can read
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
        return None, problem, f"Check the token, and that the tunnel's public host name leads to {local_url}."
    return None, problem, "Try again; quick tunnels have no guarantee, a named or preconfigured one is steadier."


def _no_address(plan: TunnelPlan, process: Cloudflared) -> str:
    if process.ended.is_set():
        return _ended(process)
    words = process.last_words
    problem = f"cloudflared printed no address within {plan.timing.address_seconds:g} s"
    return problem + (f"; it said: {words}" if words else "")


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
    """What is wrong with the address; "" when the task app answers there."""
    if not plan.verify:
        return _ended(process) if process is not None and process.ended.wait(0.1) else ""
    timing, problem = plan.timing, "it was not asked"
    headers = {**key_headers(key), **plan.headers}
    begun = time.monotonic()
    for number in range(timing.tries):
        if leave.wait(timing.pause_seconds if number else timing.first_seconds):
            return "it was interrupted"
        if process is not None and process.ended.is_set():
            return _ended(process)
        answer = ask_health(url, headers, check_tls=timing.check_tls)
        problem = f"GET {url}/health: {in_words(answer)}"
        if answer.status == 200 and (seen is None or seen == health_fields(answer)):
            return ""
        if answer.status == 200:
            return f"{problem}, but from something else than this task app"
        if answer.status in REFUSED:
            return f"{problem}: the key is refused there, so another server or a login stands before it"
        if 300 <= answer.status < 400:
            return f"{problem}, a redirect: a login page may stand before it"
    tries = "1 try" if timing.tries == 1 else f"{timing.tries} tries"
    return f"{problem} ({tries} in {time.monotonic() - begun:.0f} s)"


def _nothing() -> None:
    """There is nothing to close."""
