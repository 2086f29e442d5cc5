"""`/mcp`, the path of two protocols: MCP's Streamable HTTP, and OpenEnv's own dialect of JSON-RPC.

A request goes to the protocol that it is of, by its headers. Where only one of the two is served, all requests go to that one.
"""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

MCP_PATHS: Final = ("/mcp", "/mcp/{environment}")
MCP_HEADERS = ("mcp-session-id", "mcp-protocol-version")
EVENT_STREAM = "text/event-stream"
"""A client of Streamable HTTP accepts it in each POST (modelcontextprotocol.io, "Sending Messages to the Server")."""


class McpPathRoute(Route):
    """A route of one of the protocols. streamable: it is that of Streamable HTTP. app: handles the requests."""

    def __init__(self, path: str, app: ASGIApp, *, streamable: bool) -> None:
        super().__init__(path, endpoint=_Endpoint(app))
        self._streamable = streamable

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match a request of the other protocol in part only, so that the other's route comes first."""
        match, child = super().matches(scope)
        if match is Match.FULL and is_streamable(scope) is not self._streamable:
            return Match.PARTIAL, child
        return match, child


def is_streamable(scope: Scope) -> bool:
    """Whether a request is one of Streamable HTTP. OpenEnv's clients only post, accept anything, and name no version."""
    headers = Headers(scope=scope)
    return (
        scope["method"] != "POST"
        or any(name in headers for name in MCP_HEADERS)
        or EVENT_STREAM in headers.get("accept", "")
    )


class _Endpoint:
    """The app as an object: starlette takes a plain function for one that returns a response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)
