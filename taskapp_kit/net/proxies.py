"""Which proxy a request goes through: the one that the usual variables name, and none for this machine itself.

HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY, in either case, as the standard library reads them (on macOS the system's
settings, too, when none is set). NO_PROXY may also name networks: `10.0.0.0/8`. No netrc is read.
"""

from __future__ import annotations

import base64
import ipaddress
import socket
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True, slots=True)
class Proxy:
    """url: without user and password. headers: what is sent to the proxy itself, its user and password among it."""

    url: str
    headers: dict[str, str] = field(default_factory=dict, repr=False)


def proxy_for(url: str) -> Proxy | None:
    """Return the proxy for that address, or None. Raises ValueError (a clause about `url`) for one that cannot be used."""
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    host = parts.hostname or ""
    # a proxy would look for that server on its own machine
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
        raise ValueError("is behind a proxy whose address cannot be read") from None
    if proxy.scheme not in ("http", "https") or not proxy.hostname:
        raise ValueError("is behind a proxy of a kind that is not supported (expected http:// or https://)")
    # not in the address, which errors and logs show
    headers = {}
    if proxy.username is not None:
        login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    return Proxy(f"{proxy.scheme}://{where}", headers)


def is_loopback(host: str) -> bool:
    """Return whether a host's name or address means this machine, however it is written (`127.1`)."""
    host = host.rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def _is_unspecified(host: str) -> bool:
    """Whether it is `0.0.0.0` or `::`, which reach this machine from here."""
    address = _address(host)
    return address is not None and address.is_unspecified


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address however it is written; one of IPv4 inside IPv6 is that of IPv4."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        # a dual-stack socket reaches the IPv4 network by it
        return (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address
    try:
        # the system's resolver reads 127.1 and 2130706433 as addresses, too
        return ipaddress.IPv4Address(socket.inet_aton(host)) if host[:1].isdigit() else None
    except OSError:
        return None


def _in_networks(host: str, exceptions: str) -> bool:
    """Whether the address is in a network of NO_PROXY; the standard library compares names only."""
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
