"""Check API keys and sites, as pure ASGI in front of routing: no byte of a body is read before the checks pass.

`candidates` says where a key may be in a request: X-API-Key, Authorization and, for task apps, X-API-Keys. `SiteRules` says
which Host and Origin headers are accepted. Programs send no Origin, and the address that they call is the Host.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taskapp_kit.config.values import MAX_KEY_BYTES
from taskapp_kit.net.addresses import AddressPolicy
from taskapp_kit.net.error_response import ErrorWriter, RequestRefused
from taskapp_kit.net.proxies import is_loopback
from taskapp_kit.net.response import Headers, peer_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_CANDIDATES = 16
MAX_BASIC_BYTES = 2048
"""Longest base64 text of HTTP Basic that is decoded."""


def candidates(headers: Headers, challenge: Headers | None = None, *, more_schemes: bool = True) -> list[bytes]:
    """Return what in the headers may be a key, each once: at most 16 of at most 512 bytes.

    headers: lower-case names, as ASGI has them. challenge: the header of a refusal. more_schemes: besides X-API-Key and
    Bearer also X-API-Keys and the password of HTTP Basic. Raises RequestRefused for a second X-API-Key or Authorization
    header: two readers of one request must not see two callers.
    """
    found: list[bytes] = []
    seen: set[bytes] = set()
    for name, value in headers:
        if name == b"x-api-key" or name == b"authorization":
            if name in seen:
                raise RequestRefused(
                    "unauthorised",
                    f"The request has two {'X-API-Key' if name == b'x-api-key' else 'Authorization'} headers.",
                    hint="Send one; several keys go into it as a comma list.",
                    headers=challenge,
                )
            seen.add(name)
            found += _authorization(value, more_schemes) if name == b"authorization" else _listed(value)
        elif name == b"x-api-keys" and more_schemes:
            found += _listed(value)
    # bounded, because each of them is compared with every key of the server
    fitting = [item for item in found[:MAX_CANDIDATES] if 0 < len(item) <= MAX_KEY_BYTES]
    return list(dict.fromkeys(fitting)) if len(fitting) > 1 else fitting


def _listed(value: bytes) -> list[bytes]:
    if b"," not in value:
        return [value.strip(b" \t")]
    return [item.strip(b" \t") for item in value.split(b",", MAX_CANDIDATES)[:MAX_CANDIDATES]]


def _authorization(value: bytes, basic: bool) -> list[bytes]:
    scheme, _, rest = value.strip(b" \t").partition(b" ")
    if scheme.lower() == b"bearer":
        return _listed(rest)
    if basic and scheme.lower() == b"basic" and len(rest) <= MAX_BASIC_BYTES:
        try:
            _, colon, password = base64.b64decode(rest.strip(b" \t"), validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return []
        return [password] if colon else []
    return []


POLICY_VIOLATION = 1008
"""The code with which a websocket is closed that has no valid key, or that a page of another site opened."""


class ApiKeyMiddleware:
    """Pass a request on when `authenticate` accepts it or its path is open, and `sites` does; answer every other one.

    authenticate: returns why a request is refused, or None; it may leave in the scope who the caller is. is_open: whether
    a request needs no key. sites: which Host and Origin are accepted, at open paths as well. errors: writes the responses.
    on_refusal: is called with the code of every refusal. An exception that reaches this middleware before a response has
    begun is answered in the one shape, too.
    """

    def __init__(
        self,
        app: ASGIApp,
        authenticate: Callable[[Scope], RequestRefused | None],
        *,
        is_open: Callable[[Scope], bool],
        sites: SiteRules,
        errors: ErrorWriter,
        on_refusal: Callable[[str], None] | None = None,
    ) -> None:
        self._app = app
        self._authenticate = authenticate
        self._is_open = is_open
        self._sites = sites
        self._errors = errors
        self._on_refusal = on_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, websocket or lifespan."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        refusal = self._authenticate(scope)
        if refusal is None:
            peer_of(scope).keyed = True
        elif scope["type"] == "http" and self._is_open(scope):
            refusal = None
        if refusal is None:
            # at open paths, too: a page of another site must not call a server on its reader's machine, even where a
            # name of that site resolves to this machine (DNS rebinding)
            refusal = self._sites.refusal(scope)
        if refusal is not None:
            await self._refuse(refusal, scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            # a response that has begun can only break off, which the server does when the application returns
            if not started and scope["type"] == "http":
                await self._errors.response(error, "(unknown)")(scope, receive, send)

    async def _refuse(self, refusal: RequestRefused, scope: Scope, receive: Receive, send: Send) -> None:
        if self._on_refusal is not None:
            self._on_refusal(refusal.code)
        if scope["type"] == "websocket":
            # ASGI allows to close a websocket only after its connect message was received
            await receive()
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": refusal.code})
        else:
            await self._errors.response(refusal)(scope, receive, send)


HOSTS = "TASKAPP_HOSTS"
_HOST = re.compile(r"(?P<name>[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")
"""Nothing else: the functions of the system that read addresses ignore what follows a space."""
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Host:
    """A host as headers name it. name: lower case, without brackets and the dot at its end."""

    name: str
    port: int | None


class SiteRules:
    """The rules of one server.

    Args:
        hosts: Names (`*.example.org` for all below one), addresses and networks under which it may be called. The address
            at which a connection arrived is always accepted: no name of another site is needed to reach it.
        local: Only this machine can reach the server, so it may be called under every name of loopback.
        any_host: Accept every Host. The Origin is still compared with it.
        origins: Sites whose pages may call, besides the server's own; `*` for all.

    Raises:
        ConfigError: An entry of `hosts` cannot be read.
    """

    def __init__(
        self, hosts: Sequence[str] = (), *, local: bool = False, any_host: bool = False, origins: Sequence[str] = ()
    ) -> None:
        self._hosts = AddressPolicy("public", hosts, setting=HOSTS)
        self._local, self._any_host = local, any_host
        self._origins = frozenset(origin.lower() for origin in origins)

    def refusal(self, scope: Scope) -> RequestRefused | None:
        """Return why a request or websocket is rejected, or None."""
        sent, origins = [], []
        for name, value in scope["headers"]:
            if name == b"host":
                sent.append(value)
            elif name == b"origin":
                origins.append(value.decode("latin-1").lower())
        host = read_host(sent)
        if not self._any_host and (host is None or not self._is_ours(host, scope)):
            return RequestRefused(
                "host_not_allowed",
                "The name in the Host header is not a name of this server.",
                hint=f"Call the server under the address that it is bound to, or add the name to {HOSTS}.",
            )
        if "*" in self._origins or all(origin in self._origins or _same_host(origin, host) for origin in origins):
            return None
        return RequestRefused(
            "origin_not_allowed",
            "Another site sent this request: its Origin header differs from the Host header.",
            hint="Add the page's origin to TASKAPP_CORS_ORIGINS. The pages at /ui accept no other site.",
        )

    def _is_ours(self, host: Host, scope: Scope) -> bool:
        if self._hosts.allows(host.name) or (self._local and is_loopback(host.name)):
            return True
        try:
            address = ipaddress.ip_address((scope.get("server") or ("",))[0])
        except ValueError:  # a name: some servers take it from the request
            return False
        # only programs of this machine reach such a server, under whichever name of loopback they know
        if address.is_loopback and is_loopback(host.name):
            return True
        try:
            return ipaddress.ip_address(host.name) == address  # a name that resolves to this address would not do
        except ValueError:
            return False


def read_host(values: Sequence[bytes]) -> Host | None:
    """Return the Host header; None unless there is exactly one and it can be read."""
    # of two Host headers a proxy might read the one and this server the other
    return _host(values[0].decode("latin-1").lower()) if len(values) == 1 else None


def _host(text: str) -> Host | None:
    found = _HOST.fullmatch(text)
    if found is None:
        return None
    return Host(found["name"].strip("[]").rstrip("."), None if found["port"] is None else int(found["port"]))


def _same_host(origin: str, host: Host | None) -> bool:
    """Whether an Origin is this host. Its scheme may differ: TLS may end at a proxy."""
    scheme, separator, rest = origin.partition("://")
    page, usual = _host(rest), _PORTS.get(scheme)
    if not separator or usual is None or page is None or host is None:
        return False
    return (page.name, page.port or usual) == (host.name, host.port or usual)
