"""Which task apps the backend calls: the caller chose the address.

A metadata or link-local address is never called. A backend that others can reach calls no private or loopback address
either, unless its operator allows the host or network.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from taskapp_kit.errors import ConfigError, FieldProblem, RequestError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
PLACE = ("body", "data", "endpoint_base_url")
MAX_LETTERS = 2048

_METADATA = frozenset(
    ipaddress.ip_address(text)
    for text in ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254")
)
_CARRIER = ipaddress.ip_network("100.64.0.0/10")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class TaskAppAddresses:
    """The rule. local: nobody but this machine reaches the backend. allow: hosts and networks that are called anyway.

    Raises ConfigError for an entry of `allow` that is neither.
    """

    def __init__(self, *, local: bool, allow: Sequence[str] = ()) -> None:
        self._local = local
        self._hosts: set[str] = set()
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for entry in allow:
            text = entry.strip().lower()
            try:
                self._networks.append(ipaddress.ip_network(text))
            except ValueError:
                if not text or "/" in text or ":" in text or "@" in text:
                    raise ConfigError(
                        "An allowed task app should be a host or a network.",
                        hint="For example tasks.internal or 10.0.0.0/8.",
                    ) from None
                self._hosts.add(text)

    def read(self, url: object) -> str:
        """The address without a slash at its end. Raises RequestError, which does not repeat it."""
        problem = None
        if not isinstance(url, str) or not url.strip():
            problem = "is missing; expected the task app's address"
        elif len(url) > MAX_LETTERS or any(letter <= " " or letter in '\\\x7f"<>' for letter in url.strip()):
            problem = "is no address"
        else:
            try:
                parts = urlsplit(url.strip())
                _ = parts.port
            except ValueError:
                problem = "is no address"
            else:
                if parts.scheme not in ("http", "https") or not parts.hostname:
                    problem = "does not begin with http://HOST or https://HOST"
                elif "@" in parts.netloc:
                    problem = "names a user before its host; expected none"
                elif parts.query or parts.fragment:
                    problem = "has a query or a fragment; expected none"
        if problem is not None or not isinstance(url, str):
            raise RequestError(
                f"The task app's address {problem}.",
                fields=(FieldProblem(PLACE, str(problem), "task_app_address"),),
                hint="Give one such as https://my-app.modal.run.",
            )
        return url.strip().rstrip("/")

    def trusts(self, url: str) -> bool:
        """Whether this backend's own key may go there: any task app of a local backend, else only allowed ones."""
        return self._local or self._allowed(urlsplit(url).hostname or "", ())

    async def admit(self, url: str) -> None:
        """Resolves the host and looks at every address. Raises RequestError; a name that is not found is let through."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        try:
            found = [ipaddress.ip_address(host)]
        except ValueError:
            try:
                told = await asyncio.get_running_loop().getaddrinfo(host, parts.port, type=socket.SOCK_STREAM)
            except (OSError, UnicodeError):
                return  # whoever connects says so, too
            found = [ipaddress.ip_address(str(item[4][0]).partition("%")[0]) for item in told]
        for address in found:
            kind = self.refusal(address, host)
            if kind is not None:
                raise RequestError(
                    f"The task app's address leads to {kind}, which this backend does not call.",
                    fields=(FieldProblem(PLACE, f"leads to {kind}", "task_app_address"),),
                    code="task_app_address",
                    hint=""
                    if kind == "a metadata or link-local address"
                    else "Its operator may allow it with --allow-task-app HOST or NETWORK.",
                )

    def refusal(self, address: Address, host: str = "") -> str | None:
        """The kind of address, in words, when it must not be called."""
        inner = _embedded(address)
        for one in (address, inner) if inner is not None else (address,):
            if one.is_link_local or one in _METADATA or one.is_multicast:
                return "a metadata or link-local address"
        for one in (address, inner) if inner is not None else (address,):
            if not one.is_global or one in _CARRIER:
                if self._local or self._allowed(host, (address, inner)):
                    return None
                return "a loopback address" if one.is_loopback else "a private address"
        return None

    def _allowed(self, host: str, addresses: Sequence[Address | None]) -> bool:
        if host.lower() in self._hosts:
            return True
        try:
            written: list[Address | None] = [ipaddress.ip_address(host)]
        except ValueError:
            written = []
        return any(
            address is not None and address.version == network.version and address in network
            for address in [*addresses, *written]
            for network in self._networks
        )


def _embedded(address: Address) -> ipaddress.IPv4Address | None:
    if not isinstance(address, ipaddress.IPv6Address):
        return None
    if address.ipv4_mapped is not None or address.sixtofour is not None:
        return address.ipv4_mapped or address.sixtofour
    return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None
