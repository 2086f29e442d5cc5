"""Selects how a remote backend reaches a task app on this machine. `open_tunnel.py` opens the tunnel.

local          no tunnel: the backend runs here
quick          `cloudflared tunnel --url`: a new public address, no account
named          `cloudflared tunnel run` with the token of a tunnel of yours, under its own host name
preconfigured  an address that leads here already
auto           preconfigured when its address is given, named when its host name is; else local for a backend on
               loopback, else quick
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
    'Install cloudflared (developers.cloudflare.com/tunnel), or pass tunnel_mode="local" when the backend runs on this '
    "machine, or preconfigured_url with an address that leads here."
)


@dataclass(frozen=True, slots=True)
class Timing:
    """attempts: how often cloudflared is started at most. address_seconds: until it prints its address. tries: how often
    `/health` is asked through the tunnel, after first_seconds, then each pause_seconds; a new name takes some seconds to
    be known. check_tls: whether the certificate must be right.
    """

    attempts: int = 3
    address_seconds: float = 30.0
    tries: int = 30
    first_seconds: float = 3.0
    pause_seconds: float = 2.0
    check_tls: bool = True

    @classmethod
    def of(cls, environ: Mapping[str, str] | None, way: Way) -> Timing:
        """As the SYNTH_TUNNEL_… variables say; an address that is there already gets fewer and quicker tries."""
        there = way == "preconfigured"
        return cls(
            attempts=int(_number("SYNTH_TUNNEL_MAX_ATTEMPTS", 3, environ, low=1)),
            tries=int(_number("SYNTH_TUNNEL_VERIFY_MAX_RETRIES", 10 if there else 30, environ, low=1)),
            first_seconds=0.0 if there else _number("SYNTH_TUNNEL_VERIFY_INITIAL_DELAY_SECS", 3.0, environ),
            pause_seconds=_number("SYNTH_TUNNEL_VERIFY_DELAY_SECS", 1.0 if there else 2.0, environ),
            check_tls=_switch("SYNTH_TUNNEL_VERIFY_TLS", environ),
        )


@dataclass(frozen=True, slots=True)
class TunnelPlan:
    """What will be opened. url: of `named` and `preconfigured`. headers: sent with each try besides the key. program:
    cloudflared's full path. verify: whether it is tried. why: one sentence for a log.
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
        """The hosts under which the task app is called; none where no tunnel is opened."""
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
    """Which way is taken; opens nothing. Raises BadArgument for what does not go together, TunnelError when there is no way.

    backend_url: None means BACKEND_BASE_URL, then PROD_BACKEND_URL. token: of a named tunnel; None means
    SYNTH_TUNNEL_TOKEN, then cloudflared's own TUNNEL_TOKEN. environ: the process environment when None.
    """
    if mode not in get_args(Mode):
        raise BadArgument(f"tunnel_mode {str(mode)[:40]!r} is unknown; expected one of {', '.join(get_args(Mode))}.")
    if preconfigured_url and mode not in ("auto", "preconfigured"):
        raise BadArgument(f'preconfigured_url goes with tunnel_mode="preconfigured", not with {mode!r}.')
    if hostname and mode not in ("auto", "named"):
        raise BadArgument(f'tunnel_hostname goes with tunnel_mode="named", not with {mode!r}.')
    if bool(preconfigured_auth_header) != bool(preconfigured_auth_token):
        raise BadArgument("preconfigured_auth_header and preconfigured_auth_token go together; one of them is missing.")
    way, why = _choose(mode, backend_url, preconfigured_url, hostname, environ)
    if way == "local":
        return TunnelPlan(way, why=why)
    timing = timing or Timing.of(environ, way)
    verify = not skip_verification
    if way == "preconfigured":
        given = preconfigured_url or process_variable("SYNTH_TASK_APP_URL", environ)
        if not given:
            raise BadArgument('tunnel_mode="preconfigured" needs an address: preconfigured_url or SYNTH_TASK_APP_URL.')
        headers = _header(preconfigured_auth_header, preconfigured_auth_token)
        return TunnelPlan(way, _address(given), headers, verify=verify, timing=timing, why=why)
    if way == "quick":
        return TunnelPlan(way, program=_program(cloudflared, why), verify=verify, timing=timing, why=why)
    hostname = hostname or process_variable("SYNTH_TUNNEL_HOSTNAME", environ)
    token = token or process_variable("SYNTH_TUNNEL_TOKEN", environ) or process_variable("TUNNEL_TOKEN", environ)
    if not hostname or not token:
        lacking = [
            *(() if hostname else ("a host name (tunnel_hostname or SYNTH_TUNNEL_HOSTNAME)",)),
            *(() if token else ("its token (tunnel_token or SYNTH_TUNNEL_TOKEN)",)),
        ]
        raise BadArgument(
            f'tunnel_mode="named" needs {" and ".join(lacking)}.',
            hint="Cloudflare's dashboard shows both at the tunnel.",
        )
    if not token.isascii() or not token.isprintable():
        raise BadArgument("The tunnel's token cannot be used; expected one line of plain letters.")
    url = _address(hostname if "://" in hostname else f"https://{hostname}")
    program = _program(cloudflared, why)
    return TunnelPlan(way, url, token=token, program=program, verify=verify, timing=timing, why=why)


def on_loopback(url: str) -> bool:
    """The address says that it is this machine's own; no name is looked up."""
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
        return "preconfigured", "preconfigured_url is given"
    if hostname:
        return "named", "tunnel_hostname is given"
    if process_variable("SYNTH_TASK_APP_URL", environ):
        return "preconfigured", "SYNTH_TASK_APP_URL is set"
    wished = process_variable("SYNTH_TUNNEL_MODE", environ)
    if wished and wished != "auto":
        for way in get_args(Way):
            if wished == way:
                return way, f"SYNTH_TUNNEL_MODE is {way}"
        raise BadArgument(f"SYNTH_TUNNEL_MODE is unknown; expected one of {', '.join(get_args(Mode))}.")
    backend = backend_url
    for name in BACKEND_VARIABLES:
        backend = backend or process_variable(name, environ)
    if backend and on_loopback(backend):
        return "local", "the backend is on this machine"
    return (
        "quick",
        "the backend is on another machine" if backend else "it is not known that the backend is on this machine",
    )


def _program(cloudflared: str | Path, why: str) -> str:
    found = shutil.which(str(cloudflared))
    if found is None:
        raise TunnelError(f"No tunnel can be opened ({why}), because there is no program {cloudflared}.", hint=INSTALL)
    return str(Path(found).absolute())


def _address(text: str) -> str:
    """An http or https address without a slash at its end. Raises BadArgument."""
    try:
        parts = urlsplit(text.strip())
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or "@" in parts.netloc or parts.query or parts.fragment or not text.strip().isprintable():
        raise BadArgument(
            "The task app's outside address cannot be used; expected one like https://task-app.example.org, without a "
            "user name, query or fragment."
        )
    return text.strip().rstrip("/")


def _header(name: str | None, value: str | None) -> dict[str, str]:
    if not name or not value:
        return {}
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}", name):
        raise BadArgument("preconfigured_auth_header is no header's name; expected one like CF-Access-Token.")
    if not value.isascii() or not value.isprintable():
        raise BadArgument("preconfigured_auth_token cannot stand in a header; expected plain letters.")
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
        raise BadArgument(f"{name} cannot be used; expected a number from {low:g} to 3600.")
    return number


def _switch(name: str, environ: Mapping[str, str] | None) -> bool:
    return (process_variable(name, environ) or "true").lower() not in ("0", "false", "no", "off")
