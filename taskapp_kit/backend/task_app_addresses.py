"""Which task apps the backend calls: the caller chose the address.

A metadata, link-local or multicast address is never called. A backend that others can reach calls no private or loopback
address either, unless its operator allows the host or network. `admit` looks before a job or a check begins, so that the
caller hears of it; `guard` is asked for each address that is really connected to.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from taskapp_kit.errors import ConfigError, FieldProblem, RequestError
from taskapp_kit.net.networks import Address, embedded, is_metadata, is_metadata_name, kind_of

PLACE = ("body", "data", "endpoint_base_url")
MAX_LETTERS = 2048
RESOLVE_SECONDS = 5.0
NEVER = "a metadata or link-local address"


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
                self._networks.append(ipaddress.ip_network(text.strip("[]")))
            except ValueError:
                if not text or "/" in text or ":" in text or "@" in text:
                    raise ConfigError(
                        "An allowed task app should be a host or a network.",
                        hint="For example tasks.internal or 10.0.0.0/8.",
                    ) from None
                self._hosts.add(text.rstrip("."))

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
        host = _host(url)
        try:
            written = [ipaddress.ip_address(host)]
        except ValueError:
            written = []
        return self._local or self._allowed(host, written)

    async def admit(self, url: str) -> None:
        """Resolves the host and looks at every address. Raises RequestError; a name that is not found is let through."""
        host = _host(url)
        kind = NEVER if is_metadata_name(host) else None
        for address in () if kind else await _resolved(host, urlsplit(url).port):
            kind = kind or self.refusal(address, host)
        if kind is not None:
            raise RequestError(
                f"The task app's address leads to {kind}, which this backend does not call.",
                fields=(FieldProblem(PLACE, f"leads to {kind}", "task_app_address"),),
                code="task_app_address",
                hint="" if kind == NEVER else "Its operator may allow it with --allow-task-app HOST or NETWORK.",
            )

    def guard(self, url: str) -> Callable[[str], str | None]:
        """Says for an IP address that this URL is about to be asked at why it is not called; None when it may be."""
        host = _host(url)

        def refuse(address: str) -> str | None:
            kind = self.refusal(address, host)
            return None if kind is None else f"It leads to {kind}, which this backend does not call."

        return refuse

    def refusal(self, address: str, host: str = "") -> str | None:
        """The kind of address, in words, when `host` leads to it and it must not be called."""
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return "no address"
        inner = embedded(found)
        both = [found] if inner is None else [found, inner]
        if is_metadata_name(host) or is_metadata(found) or any(one.is_link_local or one.is_multicast for one in both):
            return NEVER
        if self._local or self._allowed(host, both):
            return None
        return next((kind for one in both if (kind := kind_of(one)) is not None), None)

    def _allowed(self, host: str, addresses: Sequence[Address]) -> bool:
        return host in self._hosts or any(
            address.version == network.version and address in network
            for address in addresses
            for network in self._networks
        )


def _host(url: str) -> str:
    return (urlsplit(url).hostname or "").lower().rstrip(".")


async def _resolved(host: str, port: int | None) -> list[str]:
    """Every address of the host; none when it is not found in time: whoever connects says so, and is guarded."""
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        pass
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            told = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [str(item[4][0]) for item in told]
