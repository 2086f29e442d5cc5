"""Selects how a remote backend reaches a task app on this machine. `open_tunnel.py` opens the tunnel.

local          no tunnel, because the backend runs on this machine
quick          `cloudflared tunnel --url`, with a new public address and without an account
named          `cloudflared tunnel run`, with the token and the host name of your tunnel
preconfigured  an existing public address that forwards to this machine
auto           preconfigured if an address is set, named if a host name is set, local if the backend runs on this
               machine, and quick otherwise
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import urlsplit

from taskapp_kit.config import process_variable
from taskapp_kit.errors import BadArgument, TunnelError
from taskapp_kit.net.proxies import is_loopback

Way = Literal["local", "quick", "named", "preconfigured"]
Mode = Literal["auto", "local", "quick", "named", "preconfigured"]
BACKEND_VARIABLES = ("BACKEND_BASE_URL", "PROD_BACKEND_URL")
QUICK_HOSTS = "*.trycloudflare.com"
INSTALL = (
    'Install cloudflared (developers.cloudflare.com/tunnel), pass tunnel_mode="local" for a backend on this machine, '
    "or pass a public address of this machine as preconfigured_url."
)


@dataclass(frozen=True, slots=True)
class Timing:
    """Timeouts and retries of a tunnel.

    Attributes:
        attempts: Maximum number of times that cloudflared is started.
        address_seconds: How many seconds cloudflared may take to print its address.
        tries: Maximum number of requests to `/health` through the tunnel. A new host name resolves only after some
            seconds.
        first_seconds: Pause before the first request.
        pause_seconds: Pause between two requests.
        check_tls: Whether to verify the certificate.
    """

    attempts: int = 3
    address_seconds: float = 30.0
    tries: int = 30
    first_seconds: float = 3.0
    pause_seconds: float = 2.0
    check_tls: bool = True

    @classmethod
    def of(cls, environ: Mapping[str, str] | None, way: Way) -> Timing:
        """Read the SYNTH_TUNNEL_… variables. The test of a preconfigured address starts without a pause."""
        preconfigured = way == "preconfigured"
        return cls(
            attempts=int(_number("SYNTH_TUNNEL_MAX_ATTEMPTS", 3, environ, low=1)),
            tries=int(_number("SYNTH_TUNNEL_VERIFY_MAX_RETRIES", 10 if preconfigured else 30, environ, low=1)),
            first_seconds=0.0 if preconfigured else _number("SYNTH_TUNNEL_VERIFY_INITIAL_DELAY_SECS", 3.0, environ),
            pause_seconds=_number("SYNTH_TUNNEL_VERIFY_DELAY_SECS", 1.0 if preconfigured else 2.0, environ),
            check_tls=_switch("SYNTH_TUNNEL_VERIFY_TLS", environ),
        )


@dataclass(frozen=True, slots=True)
class TunnelPlan:
    """The tunnel to open.

    Attributes:
        way: The kind of tunnel.
        url: The address of a named or preconfigured tunnel.
        headers: Additional headers for test requests.
        token: The token of a named tunnel.
        program: The full path of cloudflared.
        verify: Whether to test the tunnel.
        timing: Timeouts and retries.
        why: Why this kind was selected, for the log.
    """

    way: Way
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    token: str | None = field(default=None, repr=False)
    program: str = ""
    verify: bool = True
    timing: Timing = field(default_factory=Timing)
    why: str = ""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host names at which a backend can reach the task app. Empty if no tunnel is needed."""
        if self.url is not None:
            return (urlsplit(self.url).hostname or "",)
        return (QUICK_HOSTS,) if self.way == "quick" else ()


def plan_tunnel(
    mode: str = "auto",
    *,
    backend_url: str | None = None,
    preconfigured_url: str | None = None,
    preconfigured_auth_header: str | None = None,
    preconfigured_auth_token: str | None = None,
    hostname: str | None = None,
    token: str | None = None,
    cloudflared: str | Path = "cloudflared",
    skip_verification: bool = False,
    timing: Timing | None = None,
    environ: Mapping[str, str] | None = None,
) -> TunnelPlan:
    """Select the kind of tunnel, without opening it.

    Args:
        mode: The kind of tunnel; see the docstring of the module.
        backend_url: The address of the backend. Defaults to BACKEND_BASE_URL or PROD_BACKEND_URL.
        preconfigured_url: An existing public address that forwards to this machine. Defaults to SYNTH_TASK_APP_URL.
        preconfigured_auth_header: Name of a header that the preconfigured address requires.
        preconfigured_auth_token: Value of this header.
        hostname: Host name of a named tunnel. Defaults to SYNTH_TUNNEL_HOSTNAME.
        token: Token of a named tunnel. Defaults to SYNTH_TUNNEL_TOKEN or cloudflared's own variable TUNNEL_TOKEN.
        cloudflared: Name or path of the cloudflared program.
        skip_verification: Whether to use the tunnel without testing it.
        timing: Timeouts and retries. Defaults to the SYNTH_TUNNEL_… variables.
        environ: Environment variables. Defaults to the process environment.

    Raises:
        BadArgument: Arguments are invalid or contradict each other.
        TunnelError: cloudflared is not installed.
    """
    if mode not in get_args(Mode):
        raise BadArgument(f"tunnel_mode {str(mode)[:40]!r} is unknown. Expected one of {', '.join(get_args(Mode))}.")
    if preconfigured_url and mode not in ("auto", "preconfigured"):
        raise BadArgument(f'preconfigured_url requires tunnel_mode="preconfigured" or "auto", not {mode!r}.')
    if hostname and mode not in ("auto", "named"):
        raise BadArgument(f'tunnel_hostname requires tunnel_mode="named" or "auto", not {mode!r}.')
    if bool(preconfigured_auth_header) != bool(preconfigured_auth_token):
        raise BadArgument("preconfigured_auth_header and preconfigured_auth_token must be set together.")
    way, why = _choose(mode, backend_url, preconfigured_url, hostname, environ)
    if way == "local":
        return TunnelPlan(way, why=why)
    timing = timing or Timing.of(environ, way)
    verify = not skip_verification
    if way == "preconfigured":
        url = preconfigured_url or process_variable("SYNTH_TASK_APP_URL", environ)
        if not url:
            raise BadArgument('tunnel_mode="preconfigured" requires preconfigured_url or SYNTH_TASK_APP_URL.')
        headers = _header(preconfigured_auth_header, preconfigured_auth_token)
        return TunnelPlan(way, _address(url), headers, verify=verify, timing=timing, why=why)
    if way == "quick":
        return TunnelPlan(way, program=_program(cloudflared, why), verify=verify, timing=timing, why=why)
    hostname = hostname or process_variable("SYNTH_TUNNEL_HOSTNAME", environ)
    token = token or process_variable("SYNTH_TUNNEL_TOKEN", environ) or process_variable("TUNNEL_TOKEN", environ)
    if not hostname or not token:
        missing = [
            *(() if hostname else ("a host name (tunnel_hostname or SYNTH_TUNNEL_HOSTNAME)",)),
            *(() if token else ("a token (tunnel_token or SYNTH_TUNNEL_TOKEN)",)),
        ]
        raise BadArgument(
            f'tunnel_mode="named" requires {" and ".join(missing)}.',
            hint="Cloudflare's dashboard shows the host name and the token on the page of the tunnel.",
        )
    if not token.isascii() or not token.isprintable():
        raise BadArgument("The tunnel's token is invalid. Expected one line of printable ASCII characters.")
    url = _address(hostname if "://" in hostname else f"https://{hostname}")
    program = _program(cloudflared, why)
    return TunnelPlan(way, url, token=token, program=program, verify=verify, timing=timing, why=why)


def on_loopback(url: str) -> bool:
    """Return whether the URL has a loopback address. Host names are not looked up."""
    try:
        host = urlsplit(url if "://" in url else f"//{url}").hostname or ""
    except ValueError:
        return False
    return is_loopback(host)


def _choose(
    mode: str,
    backend_url: str | None,
    preconfigured_url: str | None,
    hostname: str | None,
    environ: Mapping[str, str] | None,
) -> tuple[Way, str]:
    for way in get_args(Way):
        if mode == way:
            return way, f"tunnel_mode is {mode}"
    if preconfigured_url:
        return "preconfigured", "preconfigured_url is set"
    if hostname:
        return "named", "tunnel_hostname is set"
    if process_variable("SYNTH_TASK_APP_URL", environ):
        return "preconfigured", "SYNTH_TASK_APP_URL is set"
    requested = process_variable("SYNTH_TUNNEL_MODE", environ)
    if requested and requested != "auto":
        for way in get_args(Way):
            if requested == way:
                return way, f"SYNTH_TUNNEL_MODE is {way}"
        raise BadArgument(f"The value of SYNTH_TUNNEL_MODE is unknown. Expected one of {', '.join(get_args(Mode))}.")
    backend = backend_url
    for name in BACKEND_VARIABLES:
        backend = backend or process_variable(name, environ)
    if backend and on_loopback(backend):
        return "local", "the backend is on this machine"
    return (
        "quick",
        "the backend is on another machine" if backend else "the backend's address is unknown",
    )


def _program(cloudflared: str | Path, why: str) -> str:
    found = shutil.which(str(cloudflared))
    if found is None:
        raise TunnelError(
            f"A tunnel is needed, because {why}, but the program {cloudflared} was not found.", hint=INSTALL
        )
    return str(Path(found).absolute())


def _address(text: str) -> str:
    """Return an http or https URL without a trailing slash. Raises BadArgument for an invalid URL."""
    try:
        parts = urlsplit(text.strip())
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or "@" in parts.netloc or parts.query or parts.fragment or not text.strip().isprintable():
        raise BadArgument(
            "The task app's public address is invalid. Expected an address like https://task-app.example.org, without a "
            "user name, query or fragment."
        )
    return text.strip().rstrip("/")


def _header(name: str | None, value: str | None) -> dict[str, str]:
    if not name or not value:
        return {}
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}", name):
        raise BadArgument("preconfigured_auth_header is not a valid header name. Expected a name like CF-Access-Token.")
    if not value.isascii() or not value.isprintable():
        raise BadArgument("preconfigured_auth_token is not a valid header value. Expected printable ASCII characters.")
    return {name: value}


def _number(name: str, default: float, environ: Mapping[str, str] | None, low: float = 0) -> float:
    text = process_variable(name, environ)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not low <= number <= 3600:
        raise BadArgument(f"{name} is invalid. Expected a number from {low:g} to 3600.")
    return number


def _switch(name: str, environ: Mapping[str, str] | None) -> bool:
    return (process_variable(name, environ) or "true").lower() not in ("0", "false", "no", "off")
