"""The key check, as pure ASGI in front of routing: no byte of a body is read before it passes."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from taskapp_kit.net.peer import peer_of
from taskapp_kit.rollout.in_flight import Caller
from taskapp_kit.serve.errors import RequestRefused, error_answer
from taskapp_kit.serve.keys import Keys
from taskapp_kit.serve.response import Headers

MAX_CANDIDATES = 16
MAX_BYTES = 512
MAX_BASIC_BYTES = 2048
"""Longest base64 text of HTTP Basic that is decoded."""
CHALLENGE: Headers = [(b"www-authenticate", b'Bearer realm="taskapp", Basic realm="taskapp", charset="UTF-8"')]
DOCUMENTS: Final = frozenset({"/docs", "/openapi.json"})
LABEL = "taskapp_kit.key_label"
"""Where the scope holds the label of the key that was used."""
QUOTA = "taskapp_kit.key_quota"
"""Where it holds how many rollouts that label may have in flight: an int, or None for any number."""
ADMIN = "taskapp_kit.key_admin"
"""Where it holds whether that key sees the rollouts of every label."""


class ApiKeyMiddleware:
    """Lets a request through when one of its credentials is a valid key; answers every other one itself.

    open_documents: `/docs` and `/openapi.json` ask for no key (exposure `local`). direct: routes without parameters by
    path, with the verbs that they know; they are entered at once, everything else goes through `app`'s own routing.
    It is also the outermost catch of an exception: whatever escapes unanswered is answered in the one shape.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Keys,
        *,
        open_documents: bool = False,
        direct: Mapping[str, tuple[frozenset[str], ASGIApp]] | None = None,
        refused: Callable[[str], None] | None = None,
    ) -> None:
        self.app = app
        self.keys = keys
        self.open_documents = open_documents
        self.direct = direct or {}
        self.refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, websocket or lifespan."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        refusal = None if self._open(scope) else self._refusal(scope)
        if refusal is not None:
            if self.refused is not None:
                self.refused(refusal.code)
            if scope["type"] == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1008, "reason": refusal.code})
            else:
                await error_answer(refusal)(scope, receive, send)
            return
        direct = self.direct.get(scope["path"]) if scope["type"] == "http" else None
        if direct is not None and scope["method"] in direct[0] and not scope.get("root_path"):
            await direct[1](scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except Exception as error:
            if not started and scope["type"] == "http":
                await error_answer(error, where="(unknown)")(scope, receive, send)

    def _open(self, scope: Scope) -> bool:
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            return False
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        return path == "/" or (self.open_documents and path in DOCUMENTS)

    def _refusal(self, scope: Scope) -> RequestRefused | None:
        if not self.keys.configured():
            return RequestRefused(
                "missing_environment_api_key",
                "ENVIRONMENT_API_KEY is not configured",
                hint="Set ENVIRONMENT_API_KEY (or TASKAPP_KEYS_FILE) where the server runs, and start it again.",
            )
        found = candidates(scope["headers"])
        if isinstance(found, RequestRefused):
            return found
        holder = self.keys.match(found)
        if holder is None:
            return RequestRefused(
                "unauthorised",
                "API key missing or invalid",
                hint="Send the key in the X-API-Key header or as Authorization: Bearer.",
                headers=CHALLENGE,
            )
        peer_of(scope).keyed = True
        scope[LABEL] = holder.label
        scope[QUOTA] = holder.max_in_flight
        scope[ADMIN] = holder.admin
        return None


def caller_of(scope: Scope, *, traceparent: str | None = None, tracestate: str | None = None) -> Caller:
    """Who sent a request that the key check let through."""
    return Caller(scope.get(LABEL), scope.get(QUOTA), traceparent, tracestate, admin=scope.get(ADMIN, False))


def candidates(headers: Headers) -> list[bytes] | RequestRefused:
    """What in the headers may be a key, each once: at most 16 of at most 512 bytes; the rest is not looked at.

    headers: lower-case names, as ASGI gives them. A second X-API-Key or Authorization header is refused: two readers of
    one request must not see two callers.
    """
    found: list[bytes] = []
    seen: set[bytes] = set()
    for name, value in headers:
        if name == b"x-api-key" or name == b"authorization":
            if name in seen:
                return RequestRefused(
                    "unauthorised",
                    f"The request has two {'X-API-Key' if name == b'x-api-key' else 'Authorization'} headers.",
                    hint="Send one; several keys go into it as a comma list.",
                    headers=CHALLENGE,
                )
            seen.add(name)
            found += _authorization(value) if name == b"authorization" else _listed(value)
        elif name == b"x-api-keys":
            found += _listed(value)
    fitting = [item for item in found[:MAX_CANDIDATES] if 0 < len(item) <= MAX_BYTES]
    return list(dict.fromkeys(fitting)) if len(fitting) > 1 else fitting


def _listed(value: bytes) -> list[bytes]:
    if b"," not in value:
        return [value.strip(b" \t")]
    return [item.strip(b" \t") for item in value.split(b",", MAX_CANDIDATES)[:MAX_CANDIDATES]]


def _authorization(value: bytes) -> list[bytes]:
    scheme, _, rest = value.strip(b" \t").partition(b" ")
    if scheme.lower() == b"bearer":
        return _listed(rest)
    if scheme.lower() == b"basic" and len(rest) <= MAX_BASIC_BYTES:
        try:
            _, colon, password = base64.b64decode(rest.strip(b" \t"), validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return []
        return [password] if colon else []
    return []
