"""Which sites may send requests to a server, by the Host and Origin headers.

A page of another site must not call a server on its reader's machine, even where a name of that site resolves to this
machine (DNS rebinding). Programs send no Origin, and the address that they call is the Host.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taskapp_kit.net.addresses import AddressPolicy
from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.net.proxies import is_loopback

if TYPE_CHECKING:
    from starlette.types import Scope

HOSTS = "TASKAPP_HOSTS"
_HOST = re.compile(r"(?P<name>[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")
"""Nothing else: the functions of the system that read addresses ignore what follows a space."""
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Host:
    """A host as headers name it. name: lower case, without brackets and the dot at its end."""

    name: str
    port: int | None


class SiteRules:
    """The rules of one server.

    Args:
        hosts: Names (`*.example.org` for all below one), addresses and networks under which it may be called. The address
            at which a connection arrived is always accepted: no name of another site is needed to reach it.
        local: Only this machine can reach the server, so it may be called under every name of loopback.
        any_host: Accept every Host. The Origin is still compared with it.
        origins: Sites whose pages may call, besides the server's own; `*` for all.

    Raises:
        ConfigError: An entry of `hosts` cannot be read.
    """

    def __init__(
        self, hosts: Sequence[str] = (), *, local: bool = False, any_host: bool = False, origins: Sequence[str] = ()
    ) -> None:
        self._hosts = AddressPolicy("public", hosts, setting=HOSTS)
        self._local, self._any_host = local, any_host
        self._origins = frozenset(origin.lower() for origin in origins)

    def refusal(self, scope: Scope) -> RequestRefused | None:
        """Return why a request or websocket is rejected, or None."""
        sent, origins = [], []
        for name, value in scope["headers"]:
            if name == b"host":
                sent.append(value)
            elif name == b"origin":
                origins.append(value.decode("latin-1").lower())
        host = read_host(sent)
        if not self._any_host and (host is None or not self._is_ours(host, scope)):
            return RequestRefused(
                "host_not_allowed",
                "The name in the Host header is not a name of this server.",
                hint=f"Call the server under the address that it is bound to, or add the name to {HOSTS}.",
            )
        if "*" in self._origins or all(origin in self._origins or _same_host(origin, host) for origin in origins):
            return None
        return RequestRefused(
            "origin_not_allowed",
            "Another site sent this request: its Origin header differs from the Host header.",
            hint="Add the page's origin to TASKAPP_CORS_ORIGINS. The pages at /ui accept no other site.",
        )

    def _is_ours(self, host: Host, scope: Scope) -> bool:
        if self._hosts.allows(host.name) or (self._local and is_loopback(host.name)):
            return True
        try:
            address = ipaddress.ip_address((scope.get("server") or ("",))[0])
        except ValueError:  # a name: some servers take it from the request
            return False
        if address.is_loopback and is_loopback(host.name):
            return True
        try:
            return ipaddress.ip_address(host.name) == address  # a name that resolves to this address would not do
        except ValueError:
            return False


def read_host(values: Sequence[bytes]) -> Host | None:
    """Return the Host header; None unless there is exactly one and it can be read."""
    return _host(values[0].decode("latin-1").lower()) if len(values) == 1 else None


def _host(text: str) -> Host | None:
    found = _HOST.fullmatch(text)
    if found is None:
        return None
    return Host(found["name"].strip("[]").rstrip("."), None if found["port"] is None else int(found["port"]))


def _same_host(origin: str, host: Host | None) -> bool:
    """Whether an Origin is this host. Its scheme may differ: TLS may end at a proxy."""
    scheme, separator, rest = origin.partition("://")
    page, usual = _host(rest), _PORTS.get(scheme)
    if not separator or usual is None or page is None or host is None:
        return False
    return (page.name, page.port or usual) == (host.name, host.port or usual)
