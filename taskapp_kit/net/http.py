"""Send HTTP requests: the key goes to one address alone, every connection is judged, and every response is bounded.

Nothing is repeated and no redirect is followed here; callers do that (`retry.py`,
`rollout/models/attempts.py`).
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
"""An idle connection is used again for this long only: many servers close theirs after 5 s, and a request that meets the
closing counts as sent."""
CHUNK_BYTES = 256 * 1024
KEEPALIVE_IDLE_SECONDS, KEEPALIVE_INTERVAL_SECONDS, KEEPALIVE_PROBES = 30, 10, 6
"""A socket notices within about a minute and a half that the other machine is gone: a rollout may take an hour without a
byte on the line."""
AGENT = f"taskapp-kit/{__version__}"
MAX_DEPTH = 254
"""Of the JSON of a response: what is deeper cannot be written again, and ends programs that walk through it."""

Guard = Callable[[str, str], str | None]
"""Called with a host name ("" where it is not known) and an IP address before a connection: why there is none, or None."""
CHECK_PROXY = "Look at HTTPS_PROXY, HTTP_PROXY and ALL_PROXY; NO_PROXY names the hosts that are reached without one."


class Trouble(Enum):
    """Why there is no whole response."""

    REFUSED = "refuses connections"
    CONNECT_TIMEOUT = f"could not be connected to within {CONNECT_SECONDS:g} s"
    UNKNOWN_HOST = "has a name that cannot be resolved"
    CERTIFICATE = "shows a certificate that this machine does not trust"
    TLS = "does not speak TLS as this machine does"
    CONNECT = "cannot be connected to"
    PROXY = "is behind a proxy that cannot be connected to"
    FORBIDDEN = "is not called"
    UNSENDABLE = "cannot be sent this request: a header or the address holds what HTTP cannot carry"
    TIMEOUT = "did not answer in time"
    DROPPED = "dropped the connection before its answer was whole"
    TRUNCATED = "dropped the connection before its answer was complete"
    NOT_HTTP = "answered with something that is not HTTP"
    TOO_LARGE = "answered with too much"


NO_CONNECTION = frozenset(
    {Trouble.CONNECT_TIMEOUT, Trouble.UNKNOWN_HOST, Trouble.CERTIFICATE, Trouble.TLS, Trouble.CONNECT}
)
"""No connection was made, for another reason than that nothing listens."""
_NOT_SENT = NO_CONNECTION | {Trouble.REFUSED, Trouble.PROXY, Trouble.UNSENDABLE, Trouble.FORBIDDEN}


class NoAnswer(Exception):
    """There is no whole response.

    kind: the reason. why: a clause that goes after the server's name. status: of a response that was too large.
    """

    def __init__(self, kind: Trouble, why: str = "", *, status: int = 0) -> None:
        super().__init__(why or kind.value)
        self.kind = kind
        self.why = why or kind.value
        self.status = status

    @property
    def sent(self) -> bool:
        """Whether the server may have the request, so that it may be acting on it."""
        return self.kind not in _NOT_SENT


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A whole response. headers: names in lower case. url: the address, as it went over the wire."""

    status: int
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    url: str = ""

    def json(self) -> Any:
        """Return the body. Raises ValueError when it is not JSON, or nested deeper than 254 levels."""
        return read_json(self.body)

    def json_object(self) -> dict[str, Any] | None:
        """Return the body when it is a JSON object, else None."""
        try:
            body = self.json()
        except ValueError:
            return None
        return body if isinstance(body, dict) else None

    @property
    def retry_after(self) -> float | None:
        """Seconds, when the server gives a number of them."""
        seconds = self.headers.get("retry-after", "").strip()
        return float(seconds) if seconds.isdecimal() and len(seconds) <= 6 else None


def read_json(text: bytes | str) -> Any:
    """Return the JSON. Raises ValueError when it is none, or nested so deep (254) that it could not be written again."""
    value = orjson.loads(text)
    opening: tuple[Any, Any] = (b"[", b"{") if isinstance(text, bytes) else ("[", "{")
    # only a text with so many opening brackets can be so deep, and few have them
    if sum(map(text.count, opening)) > MAX_DEPTH:
        try:
            orjson.dumps(value)
        except TypeError:
            raise ValueError(f"nested deeper than {MAX_DEPTH} levels") from None
    return value


def header_key(key: str | None, name: str) -> str | None:
    """Return the key when a header can carry it; None for an empty one. Raises ConfigError, which does not repeat it."""
    if key is None or not key.strip():
        return None
    key = key.strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{name} holds characters that no HTTP header carries.", hint="Copy the key again.")
    return key


class AddressRefused(OSError):
    """The guard refuses an address. why: what it said."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EACCES, "address refused")
        self.why = why


class GuardedResolver:
    """Resolves names, and makes sockets only for addresses that the guard accepts.

    A name is refused when one of its addresses is. The connection goes to the very address that was judged, not to the name
    again, so a name that changes between check and connection gains nothing.
    """

    def __init__(self, resolver: AbstractResolver, guard: Guard | None) -> None:
        self._resolver, self._guard = resolver, guard
        self._by_name: set[str] = set()
        """Addresses that are accepted only because of the name that led to them."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses, all of them judged. Raises AddressRefused, OSError."""
        # one refused address is enough to refuse the name, because aiohttp may connect to any of them
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
        """Close the resolver within."""
        await self._resolver.close()

    def socket(self, address: tuple[Any, ...]) -> socket.socket:
        """Return the socket for a connection to this address: the last look, also at one that was no name."""
        family, kind, protocol, _, target = address
        # a name can lead elsewhere between a check and the connection; this is the address that is connected to
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
            # macOS does not have all three
            option = getattr(socket, name, None)
            if option is not None:
                made.setsockopt(socket.IPPROTO_TCP, option, value)
        return made


_refusals: ContextVar[list[AddressRefused]] = ContextVar("_refusals")
"""The refusals during the request that is being made: several addresses of one name may fail in different ways."""


@dataclass(slots=True)
class Transport:
    """Connections to servers, without cookies. headers: what every request carries (the key among them).

    max_body_bytes: a larger body is an error. max_error_bytes: the body of a response other than 200 is cut there, when
    given. guard: judges every address that is connected to. resolver: in place of the system's. idle_seconds: how long an
    idle connection is used again. check_tls: False takes any certificate. unix_socket: the socket of the one server, whose
    address then only names it. The connections are made on the loop of the first request; another loop gets its own.
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
        """Make one exchange of at most `seconds` in all, with pauses of at most `silence_seconds`. Raises NoAnswer."""
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
        # what an encoded body declares is not what it decodes to
        if length is not None and length <= limit and "Content-Encoding" not in response.headers:
            return await response.read()
        parts, size = [], 0
        async for chunk in response.content.iter_chunked(CHUNK_BYTES):
            size += len(chunk)
            parts.append(chunk)
            if size > limit:
                # an error's first bytes say what is wrong; the rest is not waited for
                if cut:
                    break
                too_large = f"answered with more than {limit // (1 << 20)} MiB"
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
        """Yield the head of a response; its body is read inside the block. Raises NoAnswer there, too.

        seconds: for all of it. silence_seconds: the longest pause between two reads.
        """
        refusals: list[AddressRefused] = []
        _refusals.set(refusals)
        sent = {"Content-Type": "application/json"} if body is not None else {}
        try:
            proxy = self._proxy_for(url)
            to_proxy = {} if proxy is None else proxy.headers
            if proxy is not None and url.startswith("http:"):
                sent |= to_proxy  # without a tunnel the proxy reads the request itself
            async with self._connections().request(
                verb,
                _url(url),
                data=body,
                headers={**sent, **self.headers, **(headers or {})},
                timeout=_timeout(seconds, silence_seconds),
                # aiohttp would send X-API-Key to wherever a redirect leads
                allow_redirects=False,
                proxy=None if proxy is None else proxy.url,
                proxy_headers=to_proxy or {"User-Agent": AGENT},  # never none: aiohttp would send ours, and the key
            ) as response:
                yield response
        except (_aiohttp().ClientError, OSError, ValueError) as error:
            raise _no_answer(error, refusals, seconds, silence_seconds) from None

    async def aclose(self) -> None:
        """Close the connections. A later request makes new ones."""
        session, self._session = self._session, None
        # connections of a loop that has ended cannot be closed any more
        if session is not None and self._loop is asyncio.get_running_loop():
            await session.close()

    def _proxy_for(self, url: str) -> Proxy | None:
        """The proxy of this server, looked up once. None where a guard judges: it has to see the address itself."""
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
        # connections of aiohttp belong to the loop on which they were made
        if self._session is None or self._loop is not loop or self._session.closed:
            import aiohttp

            self._session = aiohttp.ClientSession(
                connector=self._connector(),
                # a cookie would go from one rollout to the next
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": AGENT, "Accept": "application/json"},  # aiohttp sends these to a proxy, too
            )
            self._loop = loop
        return self._session

    def _connector(self) -> aiohttp.BaseConnector:
        import aiohttp

        if self.unix_socket is not None:
            return aiohttp.UnixConnector(str(self.unix_socket), limit=0, keepalive_timeout=self.idle_seconds)
        guarded = GuardedResolver(self.resolver or aiohttp.ThreadedResolver(), self.guard)
        return aiohttp.TCPConnector(
            # aiohttp's own limit is 100 connections; a call that waits for one would look as if it hung
            limit=0,
            keepalive_timeout=self.idle_seconds,
            resolver=cast("AbstractResolver", guarded),
            socket_factory=guarded.socket,
            ssl=self.check_tls,
        )


def _no_answer(
    error: Exception, refusals: list[AddressRefused], seconds: float | None, silence_seconds: float | None
) -> NoAnswer:
    """What an exception of aiohttp means. Its own text may hold the address with its query, so it is not repeated."""
    import aiohttp

    inner = getattr(error, "os_error", None)
    if isinstance(inner, AddressRefused):
        refusals = [inner]
    # aiohttp's error may be that of another address of the same name
    if refusals and isinstance(error, aiohttp.ClientConnectorError):
        return NoAnswer(Trouble.FORBIDDEN, refusals[0].why)
    match error:
        case aiohttp.ClientProxyConnectionError():
            return NoAnswer(Trouble.PROXY)
        case aiohttp.ClientHttpProxyError():
            return NoAnswer(Trouble.PROXY, f"is behind a proxy that answers {error.status}")
        case aiohttp.ConnectionTimeoutError():
            return NoAnswer(Trouble.CONNECT_TIMEOUT)
        case TimeoutError():
            waited = silence_seconds if isinstance(error, aiohttp.SocketTimeoutError) else seconds
            return NoAnswer(Trouble.TIMEOUT, f"did not answer within {waited:g} s" if waited is not None else "")
        # subclasses of ClientConnectorError come before it
        case aiohttp.ClientConnectorCertificateError():
            return NoAnswer(Trouble.CERTIFICATE)
        case aiohttp.ClientConnectorDNSError():
            return NoAnswer(Trouble.UNKNOWN_HOST)
        case aiohttp.ClientConnectorSSLError():
            return NoAnswer(Trouble.TLS)
        case aiohttp.ClientConnectorError():
            # where several addresses fail, asyncio joins their errors to one without a number
            if error.errno is None or error.errno == errno.ECONNREFUSED:
                return NoAnswer(Trouble.REFUSED)
            return NoAnswer(Trouble.CONNECT, f"cannot be connected to: {os.strerror(error.errno)}")
        case aiohttp.InvalidURL():
            return NoAnswer(Trouble.UNSENDABLE, "is no address that a request can be sent to")
        case aiohttp.ClientPayloadError():
            return NoAnswer(Trouble.TRUNCATED)
        case aiohttp.ClientResponseError():
            return NoAnswer(Trouble.NOT_HTTP)
        case aiohttp.ClientError() | OSError():
            return NoAnswer(Trouble.DROPPED)
    return NoAnswer(Trouble.UNSENDABLE)


@lru_cache(maxsize=1)
def _aiohttp() -> Any:
    """aiohttp, imported at the first request: a command that sends none starts without it."""
    import aiohttp

    return aiohttp


@lru_cache(maxsize=256)
def _url(url: str) -> Any:
    """The address as aiohttp takes it, to the letter."""
    from yarl import URL

    # yarl would normalize the escapes, which a signed query does not survive
    return URL(url, encoded=True)


@lru_cache(maxsize=64)
def _timeout(seconds: float | None, silence_seconds: float | None) -> Any:
    connect = CONNECT_SECONDS if seconds is None else min(CONNECT_SECONDS, seconds)
    return _aiohttp().ClientTimeout(total=seconds, sock_connect=connect, sock_read=silence_seconds)
