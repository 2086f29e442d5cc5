"""Selects the proxy for a request from the usual environment variables. Requests to this machine use no proxy.

The standard library reads HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY, in upper or lower case. On macOS, the system
settings are the fallback. NO_PROXY may also contain networks, such as `10.0.0.0/8`. netrc is not read.
"""

from __future__ import annotations

import base64
import ipaddress
import socket
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy.

    Attributes:
        url: The address, without user and password.
        headers: The headers for the proxy, which contain the user and password.
    """

    url: str
    headers: dict[str, str] = field(default_factory=dict, repr=False)


def proxy_for(url: str) -> Proxy | None:
    """Return the proxy for requests to an address, or None if they use no proxy.

    Raises ValueError if the proxy is unusable. The exception's message is a clause that follows the name of the server.
    """
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    host = parts.hostname or ""
    # a proxy would look for the server on the proxy's machine
    if is_loopback(host) or _is_unspecified(host):
        return None
    named = getproxies()
    found = named.get(parts.scheme) or named.get("all")
    if not found or proxy_bypass(_netloc(host, parts.port)) or _in_networks(host, named.get("no", "")):
        return None
    try:
        proxy = urlsplit(found if "://" in found else f"http://{found}")
        where = _netloc(proxy.hostname or "", proxy.port)
    except ValueError:
        raise ValueError("is behind a proxy whose address is invalid") from None
    if proxy.scheme not in ("http", "https") or not proxy.hostname:
        raise ValueError("is behind a proxy with an unsupported scheme; expected http:// or https://")
    # sent as a header and not in the address, because errors and logs contain the address
    headers = {}
    if proxy.username is not None:
        login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    return Proxy(f"{proxy.scheme}://{where}", headers)


def is_loopback(host: str) -> bool:
    """Return whether a host name, or an address in any notation such as `127.1`, means this machine."""
    host = host.rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def _is_unspecified(host: str) -> bool:
    """Return whether the host is `0.0.0.0` or `::`. Connections to these addresses also reach this machine."""
    address = _address(host)
    return address is not None and address.is_unspecified


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an IP address in any notation, or return None if the host is a name.

    An IPv4 address inside an IPv6 address is returned as IPv4.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        # dual-stack sockets use this format for IPv4 addresses
        return (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address
    try:
        # the system's resolver also accepts 127.1 and 2130706433 as addresses
        return ipaddress.IPv4Address(socket.inet_aton(host)) if host[:1].isdigit() else None
    except OSError:
        return None


def _in_networks(host: str, exceptions: str) -> bool:
    """Return whether the host is an address in a network that NO_PROXY contains.

    The standard library only compares names.
    """
    address = _address(host)
    for word in exceptions.split(",") if address is not None else ():
        try:
            if address in ipaddress.ip_network(word.strip(), strict=False):
                return True
        except ValueError:
            continue
    return False


def _netloc(host: str, port: int | None) -> str:
    shown = f"[{host}]" if ":" in host else host
    return shown if port is None else f"{shown}:{port}"
