"""Encoded responses, and the state of the connections on which they are sent.

A response is a status, headers and bytes that are sent as they are, without a web framework.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from taskapp_kit.records.content import as_object

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


PEER = "taskapp_kit.peer"
"""Scope key: the connection's Peer; absent under another server."""


@dataclass(slots=True, eq=False)
class Peer:
    """The state of a connection, shared by the key check, responses and the server.

    Attributes:
        keyed: A request on this connection had a valid key.
        gone: The connection is closed.
        left: The client had closed it before the last bytes were written.
        reset: It broke, as when a client closes before it has read everything.
        answered: What the application sent last, if it records this.
        unsent: The object that a response keeps in memory until it is sent; other readers may share it.
        unsent_bytes: Its size.
    """

    keyed: bool = False
    gone: bool = False
    # Bytes that the system accepted count as sent, unless the client had closed before (`left`, checked when writing,
    # because the event loop learns it later) or the connection is then reset, as by closing with unread bytes. Otherwise
    # answers that clients with short time-outs never read would count as read, in 6 of 8 rollouts on a busy machine.
    left: bool = False
    reset: bool = False
    answered: object = None
    unsent: object = None
    unsent_bytes: int = 0

    def holds(self, unsent: object, size: int) -> None:
        """Set what a response keeps in memory until it is sent; None, 0: nothing."""
        self.unsent, self.unsent_bytes = unsent, size


def peer_of(scope: Any) -> Peer:
    """Return the peer of an ASGI scope, or a new one under another server."""
    found = scope.get(PEER)
    # under another server, nothing reads it
    return found if isinstance(found, Peer) else Peer()


Headers = list[tuple[bytes, bytes]]

JSON_HEADERS: Headers = [
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
]
SLICE_BYTES = 64 * 1024
"""A longer body is sent in slices of this size, each after the client has read enough of the previous ones."""
NO_CONTENT = 204
"""This status has no body and no Content-Length."""


@dataclass(slots=True)
class EncodedResponse:
    """A response, which is an ASGI application, so frameworks can send it.

    Attributes:
        status: The HTTP status.
        body: The bytes of the body.
        headers: Headers with lower-case names; content-length is added when sent.
        rollout_id: The rollout whose result is the body; it counts against its key's quota until it is sent.
        shared: An object that must live until the response is sent, because other readers share it.
    """

    status: int
    body: bytes
    # bytes instead of a framework's response, because a small rollout should cost less than a millisecond of CPU
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
    """Return `payload` as JSON; read-only mappings become objects. Raises TypeError for values that are not JSON."""
    return EncodedResponse(
        # as_object: schemas of tools are read-only mappings, which orjson does not support
        status,
        orjson.dumps(payload, default=as_object),
        [*JSON_HEADERS, *headers] if headers else JSON_HEADERS,
    )


async def answer_without_http(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer the lifespan and websockets of an application without a framework: accept the first, close the second."""
    await receive()
    if scope["type"] == "websocket":
        await send({"type": "websocket.close"})
        return
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})
