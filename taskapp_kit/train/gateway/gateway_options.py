"""Where a job's gateway listens, and the address at which its task app finds it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Self
from urllib.parse import urlsplit

from taskapp_kit.errors import ConfigError
from taskapp_kit.net.addresses import NotAnAddress, server_url
from taskapp_kit.net.proxies import is_loopback

LISTEN = "--gateway-listen"
URL = "--gateway-url"
TUNNEL = "--gateway-tunnel"
EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 (recognised, not bound)


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """host, port: where the gateway listens; port 0 takes a free one. url: what task apps are given, None for that address.

    tunnel: a tunnel leads to it (`deploy.tunnel.gateway_tunnel` opens it, and sets url and port).
    """

    host: str = "127.0.0.1"
    port: int = 0
    url: str | None = None
    tunnel: bool = False

    @classmethod
    def of(cls, *, url: str | None = None, listen: str | None = None, tunnel: bool = False) -> Self:
        """Return the options that flags name. url: `http(s)://HOST[:PORT][/PATH]`. listen: `HOST:PORT`.

        Raises ConfigError for what cannot be read, and for a url that leads to a port that is not known beforehand.
        """
        if tunnel and url is not None:
            raise ConfigError(f"{TUNNEL} and {URL} both give the gateway's address; expected one of them.")
        options = cls(tunnel=tunnel) if listen is None else cls(*_listened(listen), tunnel=tunnel)
        if url is not None:
            return options.at(url, URL)
        if options.host in EVERYWHERE and not tunnel:
            raise ConfigError(
                f"{LISTEN} {listen} is every address of this machine; expected {URL} beside it, the one that task apps call.",
                hint=f"{URL} http://ADDRESS_OF_THIS_MACHINE:{options.port}",
            )
        return options

    def at(self, url: str, source: str = "[gateway] url") -> Self:
        """Return the options with another address for the task app, such as that of a job's config. Raises ConfigError.

        Without a port to listen on, a loopback address gives it.
        """
        try:
            address = server_url(url)
        except NotAnAddress as wrong:
            raise ConfigError(
                f"{source}: the gateway's address {wrong}.", hint="Give one such as http://10.0.0.5:9000."
            ) from None
        parts = urlsplit(address)
        port = self.port
        if not port and is_loopback(parts.hostname or "") and parts.port:
            port = parts.port
        if not port:
            raise ConfigError(
                f"{source} is {address}, and the gateway would listen on any free port of {self.host}, to which that address "
                "cannot lead.",
                hint=f"Start with {LISTEN} HOST:PORT, the place where requests to {address} arrive "
                f"(0.0.0.0:{parts.port or 9000} for other machines).",
            )
        return replace(self, port=port, url=address, tunnel=False)


def _listened(text: str) -> tuple[str, int]:
    found = re.fullmatch(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:/\[\]]+)):(?P<port>[0-9]{1,5})", text.strip())
    if found is None or int(found["port"]) > 65_535:
        raise ConfigError(f"{LISTEN} is {text[:80]!r}; expected HOST:PORT, such as 127.0.0.1:9000 or [::1]:9000.")
    return found["six"] or found["host"], int(found["port"])
