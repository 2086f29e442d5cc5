"""`/mcp`, the path of two protocols: MCP's Streamable HTTP, and OpenEnv's dialect of JSON-RPC.

If both are served, the headers of a request decide between them. If one is served, it gets all requests.
"""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

MCP_PATHS: Final = ("/mcp", "/mcp/{environment}")
MCP_HEADERS = ("mcp-session-id", "mcp-protocol-version")
EVENT_STREAM = "text/event-stream"
"""Each POST of Streamable HTTP accepts it (modelcontextprotocol.io, "Sending Messages to the Server")."""


class McpPathRoute(Route):
    """A route of one of the two protocols. streamable: whether it serves Streamable HTTP."""

    def __init__(self, path: str, app: ASGIApp, *, streamable: bool) -> None:
        super().__init__(path, endpoint=_Endpoint(app))
        self._streamable = streamable

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match a request of the other protocol only partially, so that the other's route wins."""
        match, child = super().matches(scope)
        if match is Match.FULL and is_streamable(scope) is not self._streamable:
            return Match.PARTIAL, child
        return match, child


def is_streamable(scope: Scope) -> bool:
    """Return whether a request is Streamable HTTP. OpenEnv's clients only post, accept anything and send no version."""
    headers = Headers(scope=scope)
    return (
        scope["method"] != "POST"
        or any(name in headers for name in MCP_HEADERS)
        or EVENT_STREAM in headers.get("accept", "")
    )


class _Endpoint:
    """The app as an object, because starlette expects that a plain function returns a response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
