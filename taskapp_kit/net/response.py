"""Encoded responses, and what is known about the connections that they are sent on.

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
"""Where the scope holds the connection's Peer; absent under a server that is not the kit's."""


@dataclass(slots=True, eq=False)
class Peer:
    """One for each connection; the key check and responses write it, the server reads it, and sets `gone`.

    keyed: a request on this connection had a valid key. gone: the connection is closed. left: the client had closed it
    before the last bytes were written. reset: it broke, as it does where a client closes before it has read everything.
    answered: what the application sent last, if it says so. unsent: what a response holds in memory until it is sent;
    readers of the same object share it. unsent_bytes: its size.
    """

    keyed: bool = False
    gone: bool = False
    # What the system accepted counts as sent, with two exceptions: the client had closed before (`left`, looked at in
    # the moment of writing, because the event loop learns it later), or the connection is then reset, which is what
    # closing with bytes unread does. Without them, clients with short time-outs would train on answers that they never
    # read, in 6 of 8 rollouts on a busy machine.
    left: bool = False
    reset: bool = False
    answered: object = None
    unsent: object = None
    unsent_bytes: int = 0

    def holds(self, unsent: object, size: int) -> None:
        """Set what a response holds in memory until it is sent; None, 0: nothing."""
        self.unsent, self.unsent_bytes = unsent, size


def peer_of(scope: Any) -> Peer:
    """Return the peer of an ASGI scope; a new, unused one under a server that sets none."""
    found = scope.get(PEER)
    # under a server that is not ours nobody reads it
    return found if isinstance(found, Peer) else Peer()


Headers = list[tuple[bytes, bytes]]

JSON_HEADERS: Headers = [
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
]
SLICE_BYTES = 64 * 1024
"""A longer body is sent in pieces of this size, each when the client has read enough of those before."""
NO_CONTENT = 204
"""This status has no body and no Content-Length."""


@dataclass(slots=True)
class EncodedResponse:
    """One response, which is an ASGI application: frameworks send it like any response of their own.

    status: HTTP status. body: the bytes of the body. headers: lower-case names; content-length is added when sent.
    rollout_id: the rollout whose result the body is; it counts against its key's limit until it is sent. shared: an object
    that has to live until the response is sent, because other readers of the same result share it.
    """

    status: int
    body: bytes
    # bytes, and no response of a framework: a small rollout should cost less than a millisecond of CPU
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
    """Return `payload` as JSON; read-only mappings become objects. Raises TypeError for what JSON cannot hold."""
    return EncodedResponse(
        # as_object: schemas of tools are read-only mappings, which orjson does not know
        status,
        orjson.dumps(payload, default=as_object),
        [*JSON_HEADERS, *headers] if headers else JSON_HEADERS,
    )


async def answer_without_http(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer what is sent to an application without a framework besides requests: pass a lifespan, close a websocket."""
    await receive()
    if scope["type"] == "websocket":
        await send({"type": "websocket.close"})
        return
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})
