"""An answer, ready to be sent: a status, bytes and headers. Goes to the wire without a framework's detour."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from starlette.types import Receive, Scope, Send

from taskapp_kit.contract.content import as_object

if TYPE_CHECKING:
    from taskapp_kit.rollout.tracked_rollout import TrackedRollout

Headers = list[tuple[bytes, bytes]]

JSON_HEADERS: Headers = [
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
]


SLICE_BYTES = 64 * 1024
"""A longer body is sent in pieces of this size, each when the caller has taken enough of those before."""
NO_CONTENT = 204
"""Has no body, and says nothing of its length."""


@dataclass(slots=True)
class EncodedResponse:
    """status: HTTP status. body: bytes as they go out. headers: lower-case names; content-length is added when sent.

    rollout_id: of the rollout whose result the body is, which counts for its key until it is sent. live: that rollout when
    others may read the same result, which they share as long as one of them does.
    """

    status: int
    body: bytes
    headers: Headers = field(default_factory=lambda: JSON_HEADERS)
    rollout_id: str = ""
    live: TrackedRollout | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the answer: an EncodedResponse is an ASGI application, so frameworks take it as a response."""
        await send(
            {
                "type": "http.response.start",
                "status": self.status,
                "headers": [*self.headers, (b"content-length", b"%d" % len(self.body))]
                if self.status != NO_CONTENT
                else self.headers,
            }
        )
        await send({"type": "http.response.body", "body": self.body})


def json_answer(payload: Any, status: int = 200, headers: Headers | None = None) -> EncodedResponse:
    """`payload` as JSON; read-only mappings are written as objects. Raises TypeError for what is not JSON."""
    return EncodedResponse(
        status, orjson.dumps(payload, default=as_object), [*JSON_HEADERS, *headers] if headers else JSON_HEADERS
    )
