"""Sends HTTP requests. A guard can check the address of every connection, and every response has a size limit.

This module does not retry requests or follow redirects. `retry.py` and `rollout/models/attempts.py` do that.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import orjson

from taskapp_kit.errors import ConfigError
from taskapp_kit.net.proxies import Proxy, proxy_for
from taskapp_kit.version import __version__

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import AbstractResolver, ResolveResult


MAX_BODY_BYTES = 64 * 1024 * 1024
CONNECT_SECONDS = 10.0
IDLE_SECONDS = 3.0
"""How long an idle connection is reused.

Many servers close idle connections after 5 s. If a request arrives at that moment, it is unknown whether the server
handled it.
"""
CHUNK_BYTES = 256 * 1024
KEEPALIVE_IDLE_SECONDS, KEEPALIVE_INTERVAL_SECONDS, KEEPALIVE_PROBES = 30, 10, 6
"""TCP keepalive.

A rollout may take an hour without any traffic, so the socket must notice by itself that the other machine is gone. It
takes about 90 seconds.
"""
AGENT = f"taskapp-kit/{__version__}"
MAX_DEPTH = 254
"""The maximum nesting depth of JSON in a response.

Deeper JSON could not be written again, and could crash recursive code.
"""

Guard = Callable[[str, str], str | None]
"""Checks a connection before it is opened.

Given the host name ("" if unknown) and the IP address, it returns why the address is rejected, or None if it is not.
"""
CHECK_PROXY = "Check HTTPS_PROXY, HTTP_PROXY and ALL_PROXY; NO_PROXY lists the hosts that are called without a proxy."


class Trouble(Enum):
    """Why a response is missing or incomplete."""

    REFUSED = "refuses connections"
    CONNECT_TIMEOUT = f"did not accept a connection within {CONNECT_SECONDS:g} s"
    UNKNOWN_HOST = "has a host name that cannot be resolved"
    CERTIFICATE = "has a certificate that this machine does not trust"
    TLS = "failed the TLS handshake"
    CONNECT = "cannot be reached"
    PROXY = "is behind a proxy that cannot be reached"
    FORBIDDEN = "has an address that must not be called"
    UNSENDABLE = "cannot receive this request: a header or the address contains characters that HTTP does not allow"
    TIMEOUT = "did not respond in time"
    DROPPED = "closed the connection before it responded"
    TRUNCATED = "closed the connection before the response was complete"
    NOT_HTTP = "sent a response that is not HTTP"
    TOO_LARGE = "sent a response that is too large"


NO_CONNECTION = frozenset(
    {Trouble.CONNECT_TIMEOUT, Trouble.UNKNOWN_HOST, Trouble.CERTIFICATE, Trouble.TLS, Trouble.CONNECT}
)
"""No connection was opened, but a server may be listening."""
_NOT_SENT = NO_CONNECTION | {Trouble.REFUSED, Trouble.PROXY, Trouble.UNSENDABLE, Trouble.FORBIDDEN}


class NoAnswer(Exception):
    """A response is missing or incomplete.

    Attributes:
        kind: The reason.
        why: A clause that follows the server's name in messages.
        status: The HTTP status, if the response was too large.
    """

    def __init__(self, kind: Trouble, why: str = "", *, status: int = 0) -> None:
        super().__init__(why or kind.value)
        self.kind = kind
        self.why = why or kind.value
        self.status = status

    @property
    def sent(self) -> bool:
        """Return whether the server may have received the request and may be processing it."""
        return self.kind not in _NOT_SENT


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A complete response.

    Attributes:
        headers: The headers, with lower-case names.
        url: The address that was requested.
    """

    status: int
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    url: str = ""

    def json(self) -> Any:
        """Parse the body as JSON. Raises ValueError if it is not JSON or is nested deeper than 254 levels."""
        return read_json(self.body)

    def json_object(self) -> dict[str, Any] | None:
        """Return the parsed body, or None if it is not a JSON object."""
        try:
            body = self.json()
        except ValueError:
            return None
        return body if isinstance(body, dict) else None

    @property
    def retry_after(self) -> float | None:
        """Return the number of seconds in the header Retry-After, or None if it is absent or a date."""
        seconds = self.headers.get("retry-after", "").strip()
        return float(seconds) if seconds.isdecimal() and len(seconds) <= 6 else None


def read_json(text: bytes | str) -> Any:
    """Parse JSON. Raises ValueError for invalid JSON and for JSON that is nested deeper than 254 levels."""
    value = orjson.loads(text)
    opening: tuple[Any, Any] = (b"[", b"{") if isinstance(text, bytes) else ("[", "{")
    # only JSON with that many opening brackets can be nested that deep, so the slow check is rarely needed
    if sum(map(text.count, opening)) > MAX_DEPTH:
        try:
            orjson.dumps(value)
        except TypeError:
            raise ValueError(f"nested deeper than {MAX_DEPTH} levels") from None
    return value


def header_key(key: str | None, name: str) -> str | None:
    """Return the key, or None if it is empty.

    Raises ConfigError if a header cannot contain the key. The message does not contain the key.
    """
    if key is None or not key.strip():
        return None
    key = key.strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{name} contains characters that HTTP headers do not allow.", hint="Copy the key again.")
    return key


class AddressRefused(OSError):
    """The guard rejected an address. why: the guard's reason."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EACCES, "address refused")
        self.why = why


class GuardedResolver:
    """Resolves names, and creates sockets only for addresses that the guard accepts.

    A name is rejected if any of its addresses is rejected. The connection uses the checked address and does not resolve
    the name again, so it does not matter if the name's addresses change in between.
    """

    def __init__(self, resolver: AbstractResolver, guard: Guard | None) -> None:
        self._resolver, self._guard = resolver, guard
        self._by_name: set[str] = set()
        """The addresses that are accepted only because their host name is allowed."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Resolve a host name and check all its addresses.

        Raises AddressRefused, or OSError if the name cannot be resolved.
        """
        # one rejected address rejects the name, because aiohttp may connect to any of its addresses
        found = await self._resolver.resolve(host, port, family)
        if self._guard is not None:
            for address in [result["host"] for result in found]:
                why = self._guard(host, address)
                if why is not None:
                    raise AddressRefused(why)
                if self._guard("", address) is not None:
                    self._by_name.add(address)
        return found

    async def close(self) -> None:
        """Close the wrapped resolver."""
        await self._resolver.close()

    def socket(self, address: tuple[Any, ...]) -> socket.socket:
        """Create the socket for a connection to this address. Raises AddressRefused if the guard rejects the address.

        This check also covers hosts that are IP addresses, which are not resolved.
        """
        family, kind, protocol, _, target = address
        # a name's addresses can change after they were resolved, but this is the address of the connection
        if self._guard is not None and target[0] not in self._by_name:
            why = self._guard("", target[0])
            if why is not None:
                refused = AddressRefused(why)
                _refusals.get([]).append(refused)
                raise refused
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", KEEPALIVE_IDLE_SECONDS),
            ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_SECONDS),
            ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ):
            # macOS does not have all three options
            option = getattr(socket, name, None)
            if option is not None:
                made.setsockopt(socket.IPPROTO_TCP, option, value)
        return made


_refusals: ContextVar[list[AddressRefused]] = ContextVar("_refusals")
"""The addresses that were rejected during the current request. A name's addresses may fail for different reasons."""


@dataclass(slots=True)
class Transport:
    """Connections to servers, without cookies. They belong to the event loop of the first request.

    Args:
        headers: The headers of every request, including the key.
        max_body_bytes: The maximum size of a response body. Larger bodies raise NoAnswer.
        max_error_bytes: The size to which the body of a response with a status other than 200 is cut.
        guard: Checks the address of every connection.
        resolver: Replaces the system's DNS resolver.
        idle_seconds: How long an idle connection is reused.
        check_tls: If False, any certificate is accepted.
        unix_socket: Send every request to this Unix socket. The host in the address is then ignored.
    """

    headers: Mapping[str, str] = field(repr=False)
    max_body_bytes: int = MAX_BODY_BYTES
    max_error_bytes: int | None = None
    guard: Guard | None = field(default=None, repr=False)
    resolver: AbstractResolver | None = field(default=None, repr=False)
    idle_seconds: float = IDLE_SECONDS
    check_tls: bool = True
    unix_socket: Path | None = None
    _proxy: tuple[str, Proxy | None] | None = field(default=None, repr=False)
    _session: aiohttp.ClientSession | None = field(default=None, repr=False)
    _loop: asyncio.AbstractEventLoop | None = field(default=None, repr=False)

    async def send(
        self,
        verb: str,
        url: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float | None,
        silence_seconds: float | None = None,
    ) -> HttpResponse:
        """Send one request and read the complete response. Raises NoAnswer if no complete response arrives.

        seconds: the time limit. silence_seconds: the longest allowed pause between two reads.
        """
        limits: dict[str, float | None] = {"seconds": seconds, "silence_seconds": silence_seconds}
        async with self.open(verb, url, body=body, headers=headers, **limits) as response:
            content = await self._body(response)
            lowered = {name.lower(): value for name, value in response.headers.items()}
            return HttpResponse(response.status, content, lowered, url)

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        limit, cut = self.max_body_bytes, False
        if response.status != 200 and self.max_error_bytes is not None:
            limit, cut = self.max_error_bytes, True
        length = response.content_length
        # the Content-Length of a compressed body is not its decoded size
        if length is not None and length <= limit and "Content-Encoding" not in response.headers:
            return await response.read()
        parts, size = [], 0
        async for chunk in response.content.iter_chunked(CHUNK_BYTES):
            size += len(chunk)
            parts.append(chunk)
            if size > limit:
                # the first bytes of an error response are enough to describe the error
                if cut:
                    break
                too_large = f"sent more than {limit // (1 << 20)} MiB"
                raise NoAnswer(Trouble.TOO_LARGE, too_large, status=response.status)
        return b"".join(parts)

    @asynccontextmanager
    async def open(
        self,
        verb: str,
        url: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float | None,
        silence_seconds: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send one request and yield the response before its body is read.

        The caller reads the body in the `with` block.

        seconds: the time limit, including the body. silence_seconds: the longest allowed pause between two reads.
        Raises NoAnswer if no response arrives, or if the body cannot be read completely.
        """
        refusals: list[AddressRefused] = []
        _refusals.set(refusals)
        sent = {"Content-Type": "application/json"} if body is not None else {}
        try:
            proxy = self._proxy_for(url)
            to_proxy = {} if proxy is None else proxy.headers
            if proxy is not None and url.startswith("http:"):
                sent |= to_proxy  # a proxy reads plain http requests, which are not tunneled
            async with self._connections().request(
                verb,
                _url(url),
                data=body,
                headers={**sent, **self.headers, **(headers or {})},
                timeout=_timeout(seconds, silence_seconds),
                # aiohttp would send X-API-Key to the target of every redirect
                allow_redirects=False,
                proxy=None if proxy is None else proxy.url,
                proxy_headers=to_proxy or {"User-Agent": AGENT},  # otherwise aiohttp would send the key to the proxy
            ) as response:
                yield response
        except (_aiohttp().ClientError, OSError, ValueError) as error:
            raise _no_answer(error, refusals, seconds, silence_seconds) from None

    async def aclose(self) -> None:
        """Close all connections. A later request opens new connections."""
        session, self._session = self._session, None
        # connections of an event loop that has ended can no longer be closed
        if session is not None and self._loop is asyncio.get_running_loop():
            await session.close()

    def _proxy_for(self, url: str) -> Proxy | None:
        """Return the proxy for this server, or None to connect directly.

        If there is a guard, no proxy is used, because the guard must check the server's own address.
        """
        if self.guard is not None or self.unix_socket is not None:
            return None
        parts = urlsplit(url)
        server = f"{parts.scheme}://{parts.netloc}"
        if self._proxy is None or self._proxy[0] != server:
            try:
                self._proxy = server, proxy_for(url)
            except ValueError as error:
                raise NoAnswer(Trouble.PROXY, str(error)) from None
        return self._proxy[1]

    def _connections(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        # aiohttp connections belong to the event loop in which they were opened
        if self._session is None or self._loop is not loop or self._session.closed:
            import aiohttp

            self._session = aiohttp.ClientSession(
                connector=self._connector(),
                # cookies would leak from one rollout to the next
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": AGENT, "Accept": "application/json"},  # aiohttp also sends these to a proxy
            )
            self._loop = loop
        return self._session

    def _connector(self) -> aiohttp.BaseConnector:
        import aiohttp

        if self.unix_socket is not None:
            return aiohttp.UnixConnector(str(self.unix_socket), limit=0, keepalive_timeout=self.idle_seconds)
        guarded = GuardedResolver(self.resolver or aiohttp.ThreadedResolver(), self.guard)
        return aiohttp.TCPConnector(
            # with aiohttp's default limit of 100 connections, a call that waits for a connection would appear to hang
            limit=0,
            keepalive_timeout=self.idle_seconds,
            resolver=cast("AbstractResolver", guarded),
            socket_factory=guarded.socket,
            ssl=self.check_tls,
        )


def _no_answer(
    error: Exception, refusals: list[AddressRefused], seconds: float | None, silence_seconds: float | None
) -> NoAnswer:
    """Convert an aiohttp exception to NoAnswer.

    The exception's message is omitted, because it may contain a secret query.
    """
    import aiohttp

    inner = getattr(error, "os_error", None)
    if isinstance(inner, AddressRefused):
        refusals = [inner]
    # aiohttp's error may be about another address of the same host name
    if refusals and isinstance(error, aiohttp.ClientConnectorError):
        return NoAnswer(Trouble.FORBIDDEN, refusals[0].why)
    match error:
        case aiohttp.ClientProxyConnectionError():
            return NoAnswer(Trouble.PROXY)
        case aiohttp.ClientHttpProxyError():
            return NoAnswer(Trouble.PROXY, f"is behind a proxy that responded with status {error.status}")
        case aiohttp.ConnectionTimeoutError():
            return NoAnswer(Trouble.CONNECT_TIMEOUT)
        case TimeoutError():
            waited = silence_seconds if isinstance(error, aiohttp.SocketTimeoutError) else seconds
            return NoAnswer(Trouble.TIMEOUT, f"did not respond within {waited:g} s" if waited is not None else "")
        # subclasses of ClientConnectorError must come before ClientConnectorError
        case aiohttp.ClientConnectorCertificateError():
            return NoAnswer(Trouble.CERTIFICATE)
        case aiohttp.ClientConnectorDNSError():
            return NoAnswer(Trouble.UNKNOWN_HOST)
        case aiohttp.ClientConnectorSSLError():
            return NoAnswer(Trouble.TLS)
        case aiohttp.ClientConnectorError():
            # if several addresses fail, asyncio combines their errors into an error without an errno
            if error.errno is None or error.errno == errno.ECONNREFUSED:
                return NoAnswer(Trouble.REFUSED)
            return NoAnswer(Trouble.CONNECT, f"cannot be reached: {os.strerror(error.errno)}")
        case aiohttp.InvalidURL():
            return NoAnswer(Trouble.UNSENDABLE, "is not a valid address")
        case aiohttp.ClientPayloadError():
            return NoAnswer(Trouble.TRUNCATED)
        case aiohttp.ClientResponseError():
            return NoAnswer(Trouble.NOT_HTTP)
        case aiohttp.ClientError() | OSError():
            return NoAnswer(Trouble.DROPPED)
    return NoAnswer(Trouble.UNSENDABLE)


@lru_cache(maxsize=1)
def _aiohttp() -> Any:
    """Import and return aiohttp at the first request, so that commands that send no requests start faster."""
    import aiohttp

    return aiohttp


@lru_cache(maxsize=256)
def _url(url: str) -> Any:
    """Convert an address to aiohttp's type without normalizing it."""
    from yarl import URL

    # yarl would normalize escapes, which would invalidate a signed query
    return URL(url, encoded=True)


@lru_cache(maxsize=64)
def _timeout(seconds: float | None, silence_seconds: float | None) -> Any:
    connect = CONNECT_SECONDS if seconds is None else min(CONNECT_SECONDS, seconds)
    return _aiohttp().ClientTimeout(total=seconds, sock_connect=connect, sock_read=silence_seconds)
