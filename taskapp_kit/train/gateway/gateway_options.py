"""The address on which a job's gateway listens, and the address at which the task app reaches the gateway."""

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
    """The address of a gateway.

    Attributes:
        host: The host to listen on.
        port: The port to listen on. 0 selects a free port.
        url: The address for task apps. None means the address on which the gateway listens.
        tunnel: Whether `deploy.tunnel.gateway_tunnel` should open a tunnel, which sets `url` and `port`.
    """

    host: str = "127.0.0.1"
    port: int = 0
    url: str | None = None
    tunnel: bool = False

    @classmethod
    def of(cls, *, url: str | None = None, listen: str | None = None, tunnel: bool = False) -> Self:
        """Return the options from the flags of a command.

        Args:
            url: `http(s)://HOST[:PORT][/PATH]`.
            listen: `HOST:PORT`.
            tunnel: Whether to open a tunnel.

        Raises:
            ConfigError: A value is invalid, `url` and `tunnel` are both set, `url` is set without a port to listen on,
                or `listen` has the host 0.0.0.0 or :: and neither `url` nor `tunnel` is set.
        """
        if tunnel and url is not None:
            raise ConfigError(f"{TUNNEL} and {URL} both set the gateway's address. Pass only one of them.")
        options = cls(tunnel=tunnel) if listen is None else cls(*_listened(listen), tunnel=tunnel)
        if url is not None:
            return options.at(url, URL)
        if options.host in EVERYWHERE and not tunnel:
            raise ConfigError(
                f"{LISTEN} {listen} listens on all addresses of this machine. Pass {URL} with the address that task apps "
                "should call.",
                hint=f"{URL} http://ADDRESS_OF_THIS_MACHINE:{options.port}",
            )
        return options

    def at(self, url: str, source: str = "[gateway] url") -> Self:
        """Return the options with a different address for task apps, such as the address in a job's config.

        If no port to listen on is set and `url` is a loopback address, its port is used. Raises ConfigError if `url` is
        invalid, or if the port to listen on remains unknown.
        """
        try:
            address = server_url(url)
        except NotAnAddress as wrong:
            raise ConfigError(
                f"{source}: the gateway's address {wrong}.", hint="Use an address such as http://10.0.0.5:9000."
            ) from None
        parts = urlsplit(address)
        port = self.port
        if not port and is_loopback(parts.hostname or "") and parts.port:
            port = parts.port
        if not port:
            raise ConfigError(
                f"{source} is {address}, but no port to listen on is set. On a random free port of {self.host}, the gateway "
                "would not receive requests to that address.",
                hint=f"Pass {LISTEN} HOST:PORT with the local address that receives requests to {address}, such as "
                f"0.0.0.0:{parts.port or 9000}.",
            )
        return replace(self, port=port, url=address, tunnel=False)


def _listened(text: str) -> tuple[str, int]:
    found = re.fullmatch(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:/\[\]]+)):(?P<port>[0-9]{1,5})", text.strip())
    if found is None or int(found["port"]) > 65_535:
        raise ConfigError(f"{LISTEN} is {text[:80]!r}. Expected HOST:PORT, such as 127.0.0.1:9000 or [::1]:9000.")
    return found["six"] or found["host"], int(found["port"])
