"""Check API keys and sites, as pure ASGI in front of routing: no byte of a body is read before the checks pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from taskapp_kit.net.error_response import ErrorWriter, RequestRefused
from taskapp_kit.net.response import peer_of
from taskapp_kit.net.sites import SiteRules

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
            if not started and scope["type"] == "http":
                await self._errors.response(error, "(unknown)")(scope, receive, send)

    async def _refuse(self, refusal: RequestRefused, scope: Scope, receive: Receive, send: Send) -> None:
        if self._on_refusal is not None:
            self._on_refusal(refusal.code)
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": refusal.code})
        else:
            await self._errors.response(refusal)(scope, receive, send)
