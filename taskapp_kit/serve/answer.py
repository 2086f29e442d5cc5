"""An answer, ready to be sent: a status, bytes and headers. Goes to the wire without a framework's detour."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from taskapp_kit.contract.content import as_object

Headers = list[tuple[bytes, bytes]]

JSON_HEADERS: Headers = [
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
]


NO_CONTENT = 204
"""Has no body, and says nothing of its length."""


@dataclass(slots=True)
class Answer:
    """status: HTTP status. body: bytes as they go out. headers: lower-case names; content-length is added when sent."""

    status: int
    body: bytes
    headers: Headers = field(default_factory=lambda: JSON_HEADERS)

    @property
    def closes(self) -> bool:
        """True when the connection is to be closed after it."""
        return (b"connection", b"close") in self.headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the answer: an Answer is an ASGI application, so it also serves where a framework expects a response.

        One that `closes` is whole for the caller but not ended: who sends it drains the request, then ends it.
        """
        await send(
            {
                "type": "http.response.start",
                "status": self.status,
                "headers": [*self.headers, (b"content-length", b"%d" % len(self.body))]
                if self.status != NO_CONTENT
                else self.headers,
            }
        )
        await send({"type": "http.response.body", "body": self.body, "more_body": self.closes})


def json_answer(payload: Any, status: int = 200, headers: Headers | None = None) -> Answer:
    """`payload` as JSON; read-only mappings are written as objects. Raises TypeError for what is not JSON."""
    return Answer(
        status, orjson.dumps(payload, default=as_object), [*JSON_HEADERS, *headers] if headers else JSON_HEADERS
    )
