"""The path `/mcp`, which two protocols share: MCP's Streamable HTTP and OpenEnv's dialect of JSON-RPC.

If both protocols are served, a request's headers select the protocol. Otherwise the only served protocol handles all
requests.
"""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

MCP_PATHS: Final = ("/mcp", "/mcp/{environment}")
MCP_HEADERS = ("mcp-session-id", "mcp-protocol-version")
EVENT_STREAM = "text/event-stream"
"""Each POST of Streamable HTTP accepts this type (modelcontextprotocol.io, "Sending Messages to the Server")."""


class McpPathRoute(Route):
    """A route of one of the two protocols. streamable: whether the protocol is Streamable HTTP."""

    def __init__(self, path: str, app: ASGIApp, *, streamable: bool) -> None:
        super().__init__(path, endpoint=_Endpoint(app))
        self._streamable = streamable

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match a request of the other protocol only partially, so that the other protocol's route is preferred."""
        match, child = super().matches(scope)
        if match is Match.FULL and is_streamable(scope) is not self._streamable:
            return Match.PARTIAL, child
        return match, child


def is_streamable(scope: Scope) -> bool:
    """Return whether a request is Streamable HTTP.

    OpenEnv's clients only send POST requests, with `Accept: */*` and without a protocol version.
    """
    headers = Headers(scope=scope)
    return (
        scope["method"] != "POST"
        or any(name in headers for name in MCP_HEADERS)
        or EVENT_STREAM in headers.get("accept", "")
    )


class _Endpoint:
    """Wraps the app in an object, because starlette expects a plain function to return a response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
