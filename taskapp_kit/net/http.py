"""One HTTP exchange with one server: the key goes to that address alone, and what comes back is bounded.

Nothing is repeated and no redirect is followed here; `redirects`, `task_app` and `backend` decide that.
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
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from taskapp_kit.errors import ConfigError
from taskapp_kit.net.proxies import Proxy, proxy_for
from taskapp_kit.version import __version__

if TYPE_CHECKING:
    import aiohttp

MAX_BODY_BYTES = 64 * 1024 * 1024
CONNECT_SECONDS = 10.0
IDLE_SECONDS = 3.0
"""An idle connection is used again for this long only: many servers close theirs after 5 s, and a request that meets the
closing counts as sent."""
CHUNK_BYTES = 256 * 1024
AGENT = f"taskapp-kit/{__version__}"
MAX_DEPTH = 254
"""Of the JSON that is taken: what is deeper cannot be written again, and ends programs that walk through it."""

Trouble = Literal[
    "refused", "connect", "proxy", "dropped", "timeout", "not_http", "too_large", "unsendable", "forbidden"
]
CHECK_PROXY = "Look at HTTPS_PROXY, HTTP_PROXY and ALL_PROXY; NO_PROXY names the hosts that are asked without one."

Refuse = Callable[[str], str | None]
"""Asked for the IP address of every connection before it is made: why it may not be, as a sentence, or None."""


class NoAnswer(Exception):
    """There is no whole answer. `sent`: the server may have the request, so it may be acting on it."""

    def __init__(self, kind: Trouble, why: str) -> None:
        super().__init__(why)
        self.kind = kind
        self.why = why

    @property
    def sent(self) -> bool:
        """Whether the request may have arrived."""
        return self.kind not in ("refused", "connect", "proxy", "unsendable", "forbidden")


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A whole answer. headers: names in lower case. url: what was asked, as it went over the wire."""

    status: int
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    url: str = ""

    def json(self) -> Any:
        """The body. Raises ValueError when it is no JSON, or nested deeper than 254 levels."""
        return read_json(self.body)

    def json_object(self) -> dict[str, Any] | None:
        """The body when it is a JSON object, else None."""
        try:
            body = self.json()
        except ValueError:
            return None
        return body if isinstance(body, dict) else None

    @property
    def retry_after(self) -> float | None:
        """Seconds, when the server names them as a number."""
        told = self.headers.get("retry-after", "").strip()
        return float(told) if told.isdecimal() and len(told) <= 6 else None


def read_json(text: bytes | str) -> Any:
    """The JSON. Raises ValueError when it is none, or nested so deep (254) that it could not be written again."""
    import orjson

    value = orjson.loads(text)
    opening: tuple[Any, Any] = (b"[", b"{") if isinstance(text, bytes) else ("[", "{")
    if sum(map(text.count, opening)) > MAX_DEPTH:
        try:
            orjson.dumps(value)
        except TypeError:
            raise ValueError(f"nested deeper than {MAX_DEPTH} levels") from None
    return value


def read_address(url: str, *, example: str = "http://127.0.0.1:8001") -> str:
    """A server's address without a slash at its end. Raises ConfigError, which never repeats the address."""
    try:
        parts = urlsplit(url.strip())
        _ = parts.port
    except ValueError:
        raise ConfigError("The URL cannot be read.", hint=f"Give one such as {example}.") from None
    if not url.strip().isprintable() or " " in url.strip():
        raise ConfigError("The URL holds white space or control characters.", hint=f"Give one such as {example}.")
    if parts.scheme not in ("http", "https"):
        raise ConfigError("The URL does not begin with http:// or https://.", hint=f"Give one such as {example}.")
    if not parts.hostname or parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError(
            "The URL is a server's address alone, without a user, a query or a fragment.",
            hint=f"Give one such as {example}, and the key apart from it.",
        )
    return url.strip().rstrip("/")


def header_key(key: str | None, name: str) -> str | None:
    """The key when a header can carry it; None for an empty one. Raises ConfigError, which does not repeat it."""
    if key is None or not key.strip():
        return None
    key = key.strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{name} holds characters that no HTTP header carries.", hint="Copy the key again.")
    return key


_forbidden: ContextVar[list[str]] = ContextVar("_forbidden")
"""Why `Refuse` said no to the addresses of the request that is being made, a sentence each."""


@dataclass(slots=True)
class Transport:
    """Connections to one server. headers: what every request carries (the key among them).

    refuse: judges the address that is really connected to, after its name was resolved. The connections are made on the
    loop of the first request; another loop gets its own.
    """

    headers: Mapping[str, str] = field(repr=False)
    max_body_bytes: int = MAX_BODY_BYTES
    refuse: Refuse | None = field(default=None, repr=False)
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
        seconds: float,
    ) -> HttpResponse:
        """One exchange of at most `seconds` in all. Raises NoAnswer."""
        async with self.open(verb, url, body=body, headers=headers, seconds=seconds) as response:
            parts, size = [], 0
            async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                size += len(chunk)
                if size > self.max_body_bytes:
                    raise NoAnswer("too_large", f"answered with more than {self.max_body_bytes // (1 << 20)} MiB")
                parts.append(chunk)
            return HttpResponse(response.status, b"".join(parts), _lower(response.headers), url)

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
        """The answer's head; its body is read inside the block. Raises NoAnswer there, too.

        seconds: for all of it. silence_seconds: the longest pause between two reads.
        """
        import aiohttp
        from yarl import URL

        timeout = aiohttp.ClientTimeout(
            total=seconds, sock_connect=min(CONNECT_SECONDS, seconds or CONNECT_SECONDS), sock_read=silence_seconds
        )
        sent = {"Content-Type": "application/json"} if body is not None else {}
        no: list[str] = []
        _forbidden.set(no)
        proxy = self._proxy_for(url)
        to_proxy = {} if proxy is None else proxy.headers
        if proxy is not None and url.startswith("http:"):
            sent |= to_proxy  # without a tunnel it reads the request itself
        try:
            async with self._connections().request(
                verb,
                URL(url, encoded=True),
                data=body,
                headers={**sent, **self.headers, **(headers or {})},
                timeout=timeout,
                allow_redirects=False,
                proxy=None if proxy is None else proxy.url,
                proxy_headers=to_proxy or {"User-Agent": AGENT},  # never none: aiohttp would tell it ours, and the key
            ) as response:
                yield response
        except aiohttp.ClientProxyConnectionError:
            raise NoAnswer("proxy", "is behind a proxy that cannot be connected to") from None
        except aiohttp.ClientHttpProxyError as error:
            raise NoAnswer("proxy", f"is behind a proxy that answers {error.status}") from None
        except aiohttp.ConnectionTimeoutError:
            raise NoAnswer("connect", f"could not be connected to within {CONNECT_SECONDS:g} s") from None
        except TimeoutError:
            waited = silence_seconds if seconds is None else seconds
            raise NoAnswer("timeout", f"did not answer within {waited:g} s") from None
        except aiohttp.ClientConnectorCertificateError:
            raise NoAnswer("connect", "shows a certificate that this machine does not trust") from None
        except aiohttp.ClientConnectorDNSError:
            raise NoAnswer("connect", "has a name that cannot be resolved") from None
        except aiohttp.ClientConnectorSSLError:
            raise NoAnswer("connect", "does not speak TLS as this machine does") from None
        except aiohttp.ClientConnectorError as error:
            if no:
                raise NoAnswer("forbidden", no[0]) from None
            if error.errno in (errno.ECONNREFUSED, None):
                raise NoAnswer("refused", "refuses connections") from None
            raise NoAnswer("connect", f"cannot be connected to: {os.strerror(error.errno)}") from None
        except aiohttp.InvalidURL:
            raise NoAnswer("unsendable", "is no address that can be asked") from None
        except aiohttp.ClientResponseError:
            raise NoAnswer("not_http", "answered with something that is not HTTP") from None
        except (aiohttp.ClientError, OSError):
            raise NoAnswer("dropped", "dropped the connection before its answer was whole") from None
        except ValueError:
            raise NoAnswer(
                "unsendable", "cannot be asked so: a header or the address holds what HTTP cannot carry"
            ) from None

    async def aclose(self) -> None:
        """Closes the connections. A later request makes new ones."""
        session, self._session = self._session, None
        if session is not None and self._loop is asyncio.get_running_loop():
            await session.close()

    def _proxy_for(self, url: str) -> Proxy | None:
        """The proxy of this server, looked for once. None where `refuse` judges: it has to see the address itself."""
        if self.refuse is not None:
            return None
        parts = urlsplit(url)
        server = f"{parts.scheme}://{parts.netloc}"
        if self._proxy is None or self._proxy[0] != server:
            try:
                self._proxy = server, proxy_for(url)
            except ValueError as error:
                raise NoAnswer("proxy", str(error)) from None
        return self._proxy[1]

    def _connections(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self._session is None or self._loop is not loop or self._session.closed:
            import aiohttp

            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS, socket_factory=self._socket)
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": AGENT, "Accept": "application/json"},  # aiohttp tells these to a proxy, too
            )
            self._loop = loop
        return self._session

    def _socket(self, address: tuple[Any, ...]) -> socket.socket:
        """A socket that notices within about a minute and a half that the other machine is gone.

        A rollout may take an hour without a byte on the line.
        """
        family, kind, protocol, _, target = address
        why = self.refuse(target[0]) if self.refuse is not None else None
        if why is not None:
            _forbidden.get([]).append(why)
            raise OSError(errno.EACCES, "forbidden")
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):
            option = getattr(socket, name, None)
            if option is not None:
                made.setsockopt(socket.IPPROTO_TCP, option, value)
        return made


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
