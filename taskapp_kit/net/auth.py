"""ASGI middleware that checks API keys, Host and Origin before routing, so that unauthorized bodies are not read.

`candidates` finds the keys in a request: in X-API-Key, Authorization and, for task apps, X-API-Keys. `SiteRules`
decides which Host and Origin headers are accepted. Programs other than browsers send no Origin, and their Host is the
address that they call.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taskapp_kit.config.parsers import MAX_KEY_BYTES
from taskapp_kit.net.addresses import AddressPolicy
from taskapp_kit.net.error_response import ErrorWriter, RequestRefused
from taskapp_kit.net.proxies import is_loopback
from taskapp_kit.net.response import Headers, peer_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_CANDIDATES = 16
MAX_BASIC_BYTES = 2048
"""The maximum length of the base64 string in HTTP Basic."""


def candidates(headers: Headers, challenge: Headers | None = None, *, more_schemes: bool = True) -> list[bytes]:
    """Return the distinct possible keys in the headers: at most 16 keys of at most 512 bytes.

    Args:
        headers: The request's headers, with lower-case names as in ASGI.
        challenge: Headers to send with an error response.
        more_schemes: Also read X-API-Keys and the password of HTTP Basic.

    Raises:
        RequestRefused: X-API-Key or Authorization occurs twice. Different programs could read different headers and
            disagree about the caller.
    """
    found: list[bytes] = []
    seen: set[bytes] = set()
    for name, value in headers:
        if name == b"x-api-key" or name == b"authorization":
            if name in seen:
                raise RequestRefused(
                    "unauthorised",
                    f"The request has two {'X-API-Key' if name == b'x-api-key' else 'Authorization'} headers.",
                    hint="Send one header. It may contain several keys, separated by commas.",
                    headers=challenge,
                )
            seen.add(name)
            found += _authorization(value, more_schemes) if name == b"authorization" else _listed(value)
        elif name == b"x-api-keys" and more_schemes:
            found += _listed(value)
    # limited, because each candidate is compared with every key of the server
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
"""The close code for a websocket that has no valid key or comes from a page of another site."""


class ApiKeyMiddleware:
    """Forwards requests whose key, Host and Origin are accepted, and rejects all others.

    If an exception reaches the middleware before a response has begun, the middleware sends the error response.

    Args:
        app: The application.
        authenticate: A function that returns the error for a request, or None if its key is valid. It may store the
            caller in the scope.
        is_open: A function that returns whether a request needs no key.
        sites: The accepted Host and Origin headers. They are also checked for open paths.
        errors: Writes the error responses.
        on_refusal: Called with the code of every rejected request.
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
            # checked even for open paths: a page of another site must not call a server on the machine of its visitor,
            # even if that site's host name resolves to this machine (DNS rebinding)
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
            # a response that has begun can only be cut off; the server does this when the application returns
            if not started and scope["type"] == "http":
                await self._errors.response(error, "(unknown)")(scope, receive, send)

    async def _refuse(self, refusal: RequestRefused, scope: Scope, receive: Receive, send: Send) -> None:
        if self._on_refusal is not None:
            self._on_refusal(refusal.code)
        if scope["type"] == "websocket":
            # ASGI allows closing a websocket only after its connect message was received
            await receive()
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": refusal.code})
        else:
            await self._errors.response(refusal)(scope, receive, send)


HOSTS = "TASKAPP_HOSTS"
_HOST = re.compile(r"(?P<name>[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")
"""The only accepted characters.

Spaces are excluded, because the system's address parsers ignore everything after a space.
"""
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Host:
    """A host in a header. name: in lower case, without brackets and without a trailing dot."""

    name: str
    port: int | None


class SiteRules:
    """The rules for the Host and Origin headers of requests to one server.

    Args:
        hosts: Accepted hosts: names (`*.example.org` for subdomains), addresses and networks. The address at which a
            connection arrived is always accepted.
        local: Whether only this machine can reach the server. If so, every loopback name is accepted.
        any_host: Accept every Host. The Origin must still have the same host as the Host header.
        origins: Other sites whose pages may call the server; `*` accepts all sites.

    Raises:
        ConfigError: An entry of `hosts` is invalid.
    """

    def __init__(
        self, hosts: Sequence[str] = (), *, local: bool = False, any_host: bool = False, origins: Sequence[str] = ()
    ) -> None:
        self._hosts = AddressPolicy("public", hosts, setting=HOSTS)
        self._local, self._any_host = local, any_host
        self._origins = frozenset(origin.lower() for origin in origins)

    def refusal(self, scope: Scope) -> RequestRefused | None:
        """Return why a request or websocket is rejected, or None if it is accepted."""
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
                "The Host header does not contain a known name or address of this server.",
                hint=f"Call the server at the address that it listens on, or add the name to {HOSTS}.",
            )
        if "*" in self._origins or all(origin in self._origins or _same_host(origin, host) for origin in origins):
            return None
        return RequestRefused(
            "origin_not_allowed",
            "A page of another site sent this request: the Origin header differs from the Host header.",
            hint="Add the page's origin to TASKAPP_CORS_ORIGINS. The pages at /ui never accept other sites.",
        )

    def _is_ours(self, host: Host, scope: Scope) -> bool:
        if self._hosts.allows(host.name) or (self._local and is_loopback(host.name)):
            return True
        try:
            address = ipaddress.ip_address((scope.get("server") or ("",))[0])
        except ValueError:  # not an address: some servers copy the name from the request
            return False
        # only programs on this machine can reach a loopback address, under any loopback name
        if address.is_loopback and is_loopback(host.name):
            return True
        try:
            return ipaddress.ip_address(host.name) == address  # a name that resolves to this address is not enough
        except ValueError:
            return False


def read_host(values: Sequence[bytes]) -> Host | None:
    """Return the Host header, or None if it is absent, repeated or invalid."""
    # with two Host headers, a proxy might read one and this server the other
    return _host(values[0].decode("latin-1").lower()) if len(values) == 1 else None


def _host(text: str) -> Host | None:
    found = _HOST.fullmatch(text)
    if found is None:
        return None
    return Host(found["name"].strip("[]").rstrip("."), None if found["port"] is None else int(found["port"]))


def _same_host(origin: str, host: Host | None) -> bool:
    """Return whether an Origin has this host. The scheme may differ, because a proxy may terminate TLS."""
    scheme, separator, rest = origin.partition("://")
    page, usual = _host(rest), _PORTS.get(scheme)
    if not separator or usual is None or page is None or host is None:
        return False
    return (page.name, page.port or usual) == (host.name, host.port or usual)
