"""The connections to models: the only file that knows aiohttp. A socket is made for an address that the rules let through.

What a name leads to is judged when it is resolved, and the connection goes to that very address, not to the name again.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from taskapp_kit.net.addresses import AddressPolicy, NotAnAddress, ParsedUrl, read_url
from taskapp_kit.rollout.models.retry import AttemptFailed, retry_after
from taskapp_kit.version import __version__

CONNECT_SECONDS = 10.0
KEEP_ALIVE_SECONDS = 30.0
NAME_SECONDS = 30
"""How long it is remembered what a name led to."""
MAX_ANSWER_BYTES = 32 * 1024 * 1024
MAX_ERROR_BYTES = 64 * 1024
MOST_HOPS = 48
"""Modal answers 303 every 150 s: two hours."""

HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "User-Agent": f"taskapp-kit/{__version__}",
}


class AddressRefused(OSError):
    """A name leads where the server does not call. why: in words, "a private address"."""

    def __init__(self, host: str, why: str) -> None:
        super().__init__(errno.EACCES, "address refused")
        self.host, self.why = host, why


class CheckedResolver(AbstractResolver):
    """Resolves names, and refuses a name when one of its addresses may not be called."""

    def __init__(self, rules: AddressPolicy, resolver: AbstractResolver) -> None:
        self._rules, self._resolver = rules, resolver
        self._by_name: set[str] = set()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The addresses, all of them checked. Raises AddressRefused, OSError."""
        found = await self._resolver.resolve(host, port, family)
        addresses = [result["host"] for result in found]
        for address in addresses:
            why = self._rules.refusal(host, address)
            if why is not None:
                raise AddressRefused(host, why)
        if self._rules.allows_name(host):
            self._by_name.update(addresses)
        return found

    async def close(self) -> None:
        """Closes the resolver within."""
        await self._resolver.close()

    def socket(self, address: tuple[Any, ...]) -> socket.socket:
        """The socket for a connection to this address: the last look, at what is really connected to. Raises AddressRefused."""
        family, kind, protocol, _, target = address
        if target[0] not in self._by_name:
            why = self._rules.refusal("", target[0])
            if why is not None:
                raise AddressRefused("", why)
        return socket.socket(family, kind, protocol)


@dataclass(slots=True)
class ModelHttpResponse:
    """An HTTP answer. retry_after: seconds, where its headers name them."""

    status: int
    body: bytes
    retry_after: float | None = None


class ModelConnections:
    """One session: a pool of connections without cookies, proxies and redirects, on the loop that runs when it is made."""

    def __init__(self, rules: AddressPolicy, resolver: AbstractResolver | None = None) -> None:
        self._rules = rules
        checked = CheckedResolver(rules, resolver or aiohttp.ThreadedResolver())
        connector = aiohttp.TCPConnector(
            limit=0,  # the throttle counts
            resolver=checked,
            socket_factory=checked.socket,
            keepalive_timeout=KEEP_ALIVE_SECONDS,
            ttl_dns_cache=NAME_SECONDS,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            headers=HEADERS,
            trust_env=False,
        )

    async def close(self) -> None:
        """Ends every connection."""
        await self._session.close()

    async def post(
        self, called: ParsedUrl, url: URL, body: bytes, key: str | None, now: Callable[[], float]
    ) -> ModelHttpResponse:
        """The answer to one POST, polled for where it says 303. Raises AttemptFailed; a caller sets its time limit."""
        headers = None if key is None else {"Authorization": f"Bearer {key}"}
        try:
            async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as response:
                if not 300 <= response.status < 400:
                    return await _read(response, now)
                status, location = response.status, response.headers.get("Location", "")
            for _ in range(MOST_HOPS):
                following = _next(called, url, status, location)
                async with self._session.get(following, headers=headers, allow_redirects=False) as response:
                    if not 300 <= response.status < 400:
                        return await _read(response, now)
                    status, location = response.status, response.headers.get("Location", "")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._failed(error, called) from None
        raise AttemptFailed("redirected", f"sent its caller on {MOST_HOPS} times without an answer", status=status)

    def _failed(self, error: Exception, called: ParsedUrl) -> AttemptFailed:
        """What an exception of aiohttp's comes to. Its own text may hold the address with its query, so it is not told."""
        inner = getattr(error, "os_error", error) if isinstance(error, aiohttp.ClientConnectorError) else error
        if isinstance(inner, AddressRefused):
            hint = self._rules.hint(called.host, inner.why)
            return AttemptFailed("address_refused", f"is at {inner.why}, which this server does not call", hint=hint)
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            return AttemptFailed("untrusted", "has a certificate that is not trusted here")
        if isinstance(error, aiohttp.ClientConnectorDNSError):
            return AttemptFailed("unreachable", "cannot be found: its name has no address")
        if isinstance(error, aiohttp.ClientConnectorSSLError):
            return AttemptFailed("unreachable", "speaks no TLS that can be understood")
        if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
            return AttemptFailed("unreachable", "takes no connection")
        if isinstance(error, (aiohttp.ClientPayloadError, aiohttp.ContentTypeError)):
            return AttemptFailed("truncated", "cut its answer short")
        if isinstance(error, (aiohttp.ClientResponseError, ValueError)):
            return AttemptFailed("malformed", "answered with something that is no HTTP")
        return AttemptFailed("dropped", "dropped the connection before it answered")


async def _read(response: aiohttp.ClientResponse, now: Callable[[], float]) -> ModelHttpResponse:
    good = response.status == 200
    most = MAX_ANSWER_BYTES if good else MAX_ERROR_BYTES
    length = response.content_length
    if length is not None and length <= most and "Content-Encoding" not in response.headers:
        body = await response.read()
    else:
        parts: list[bytes] = []
        left = most
        async for part in response.content.iter_any():
            parts.append(part)
            left -= len(part)
            if left < 0:
                if good:
                    raise AttemptFailed("malformed", f"answered with more than {most} bytes", status=response.status)
                break
        body = b"".join(parts)
    if good:
        return ModelHttpResponse(200, body)
    return ModelHttpResponse(response.status, body, retry_after(response.headers, now()))


def _next(called: ParsedUrl, url: URL, status: int, location: str) -> URL:
    """Where a 303 leads, if that is the same door. Raises AttemptFailed: a redirect elsewhere is never followed."""
    elsewhere = ""
    try:
        following = url.join(URL(location)) if location else url
        target = read_url(str(following))
        if status == 303 and location and called.same_origin(target):
            return URL(target.url, encoded=True)
        elsewhere = f" to {target.place}"
    except (NotAnAddress, ValueError):
        pass
    raise AttemptFailed(
        "redirected", f"sent its caller on{elsewhere} ({status}), and no call is sent on", status=status
    )


def prepared(called: ParsedUrl) -> URL:
    """The address as aiohttp takes it, to the letter."""
    return URL(called.url, encoded=True)
