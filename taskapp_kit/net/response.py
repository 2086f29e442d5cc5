"""Encoded responses, and the state of the connections on which they are sent.

A response consists of a status, headers and bytes, and is sent without a web framework.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from taskapp_kit.records.content import as_object

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


PEER = "taskapp_kit.peer"
"""The key in the ASGI scope for the connection's Peer. Only the kit's own server sets it."""


@dataclass(slots=True, eq=False)
class Peer:
    """The state of a connection, shared by the key check, responses and the server.

    Attributes:
        keyed: Whether a request on this connection had a valid key.
        gone: Whether the connection is closed.
        left: Whether the client had closed the connection before the last bytes were written.
        reset: Whether the connection broke, for example because the client closed it without reading everything.
        answered: What the application sent last, if the application records this.
        unsent: An object that must stay in memory until the response is sent. Several readers may share it.
        unsent_bytes: The size of `unsent` in bytes.
    """

    keyed: bool = False
    gone: bool = False
    # Bytes that the operating system accepted count as sent, with two exceptions: the client had already closed the
    # connection (`left`, checked when writing, because the event loop learns of it later), or the connection is reset
    # afterwards (`reset`). Without these exceptions, on a busy machine, 6 of 8 responses that clients with short
    # timeouts never read would count as read.
    left: bool = False
    reset: bool = False
    answered: object = None
    unsent: object = None
    unsent_bytes: int = 0

    def holds(self, unsent: object, size: int) -> None:
        """Record an object that must stay in memory until the response is sent, or None and 0 for no object."""
        self.unsent, self.unsent_bytes = unsent, size


def peer_of(scope: Any) -> Peer:
    """Return the peer in an ASGI scope, or a new peer if another server created the scope."""
    found = scope.get(PEER)
    # under another server, nothing reads the new peer
    return found if isinstance(found, Peer) else Peer()


Headers = list[tuple[bytes, bytes]]

JSON_HEADERS: Headers = [
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
]
SLICE_BYTES = 64 * 1024
"""Longer bodies are sent in slices of this size.

A slice is sent after the client has read enough of the previous slices.
"""
NO_CONTENT = 204
"""A response with this status has no body and no Content-Length."""


@dataclass(slots=True)
class EncodedResponse:
    """A response. It is also an ASGI application, so that web frameworks can send it.

    Attributes:
        status: The HTTP status.
        body: The bytes of the body.
        headers: Headers with lower-case names. content-length is added when the response is sent.
        rollout_id: The id of the rollout in the body. The rollout counts against its key's quota until the response is
            sent.
        shared: An object that must stay in memory until the response is sent, because several readers share it.
    """

    status: int
    body: bytes
    # not a framework's response, because a small rollout should take less than a millisecond of CPU time
    headers: Headers = field(default_factory=lambda: JSON_HEADERS)
    rollout_id: str = ""
    shared: object = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        headers = self.headers
        if self.status != NO_CONTENT:
            headers = [*headers, (b"content-length", b"%d" % len(self.body))]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


def json_answer(payload: Any, status: int = 200, headers: Headers | None = None) -> EncodedResponse:
    """Return a JSON response.

    Read-only mappings become objects. Raises TypeError if `payload` cannot be encoded as JSON.
    """
    return EncodedResponse(
        # `as_object` converts read-only mappings, such as schemas of tools, which orjson does not support
        status,
        orjson.dumps(payload, default=as_object),
        [*JSON_HEADERS, *headers] if headers else JSON_HEADERS,
    )


async def answer_without_http(scope: Scope, receive: Receive, send: Send) -> None:
    """Handle ASGI events other than HTTP requests, for an application without a framework.

    Lifespan events are acknowledged, and websockets are closed.
    """
    await receive()
    if scope["type"] == "websocket":
        await send({"type": "websocket.close"})
        return
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})
