"""Address rules for task apps, whose addresses are chosen by clients.

A metadata, link-local or multicast address is never called. A backend that others can reach calls no private or loopback
address either, unless its operator allows the host or network. `admit` checks an address before a job or a check begins,
so that the client gets an error; `guard` checks each address that is connected to.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from taskapp_kit.errors import FieldProblem, RequestError
from taskapp_kit.net.addresses import NEVER, AddressPolicy, NotAnAddress, is_metadata_name, server_url

URL_PATH = ("body", "data", "endpoint_base_url")
SETTING = "--allow-task-app"
MAX_CHARACTERS = 2048
RESOLVE_SECONDS = 5.0


class TaskAppAddresses:
    """The rules. local: only this machine can reach the backend. allow: hosts and networks that are called anyway.

    Raises ConfigError for an entry of `allow` that is neither.
    """

    def __init__(self, *, local: bool, allow: Sequence[str] = ()) -> None:
        self.local = local
        self.allow = tuple(allow)
        self._policy = AddressPolicy("local" if local else "public", allow, setting=SETTING, link_local=False)

    def read(self, url: object) -> str:
        """Return the address without a trailing slash. Raises RequestError, which does not repeat it."""
        try:
            if not isinstance(url, str) or not url.strip():
                raise NotAnAddress("is missing; expected the task app's address")
            if len(url) > MAX_CHARACTERS:
                raise NotAnAddress(f"has more than {MAX_CHARACTERS} characters")
            return server_url(url)
        except NotAnAddress as wrong:
            raise RequestError(
                f"The task app's address {wrong}.",
                fields=(FieldProblem(URL_PATH, str(wrong), "task_app_address"),),
                hint="Give one such as https://my-app.modal.run.",
            ) from None

    def trusts(self, url: str) -> bool:
        """Whether the backend's own key may be sent there: to any task app of a local backend, else to allowed ones."""
        return self.local or self._policy.allows(_host(url))

    async def admit(self, url: str) -> None:
        """Resolve the host and check every address. Raises RequestError; an unknown host name passes."""
        host = _host(url)
        kind = NEVER if is_metadata_name(host) else None
        for address in () if kind else await _resolved(host, urlsplit(url).port):
            kind = kind or self._policy.refusal(host, address)
        if kind is not None:
            raise RequestError(
                f"The task app's address resolves to {kind}, which this backend does not call.",
                fields=(FieldProblem(URL_PATH, f"resolves to {kind}", "task_app_address"),),
                code="task_app_address",
                hint="" if kind == NEVER else f"Its operator may allow it with {SETTING} HOST or NETWORK.",
            )

    def guard(self, url: str) -> Callable[[str], str | None]:
        """Return a check of the IP addresses of this URL: the reason why one is not called, or None."""
        host = _host(url)

        def refuse(address: str) -> str | None:
            kind = self._policy.refusal(host, address)
            return None if kind is None else f"It leads to {kind}, which this backend does not call."

        return refuse


def _host(url: str) -> str:
    return (urlsplit(url).hostname or "").lower().rstrip(".")


async def _resolved(host: str, port: int | None) -> list[str]:
    """Resolve the host; [] when it is not found in time: the connection reports that, and is guarded."""
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        pass
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [str(item[4][0]) for item in found]
