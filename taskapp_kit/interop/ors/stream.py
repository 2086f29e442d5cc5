"""The event stream of an ORS call: `task_id` is sent immediately, then the result in pieces, or `error`.

event: task_id
data: 5b1f…

: ping

event: chunk                 4 096 characters each
data: {"ok":true,"output":{"blocks":[…

event: end                   the last piece
data: …,"reward":1.0,"finished":true}}
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taskapp_kit.errors import SessionError
from taskapp_kit.net.response import EncodedResponse
from taskapp_kit.net.sse import STREAM_HEADERS, event_frames

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

CHUNK = 4096
"""The number of characters in a piece."""
PING_SECONDS = 10.0
PING = b": ping\n\n"


class CallFailed(Exception):
    """A call failed and has no result. The exception's message is sent as the event `error`."""


def event(name: str, data: str) -> bytes:
    """Return an encoded event. data: a string without line breaks."""
    return event_frames([(name, data.encode())])[0]


def pieces(text: str) -> Iterator[str]:
    """Cut a result into pieces.

    Only the first piece may begin with a space, because clients strip leading white space.
    """
    start = 0
    while len(text) - start > CHUNK:
        end = start + CHUNK
        while end > start + 1 and text[end].isspace():
            end -= 1
        if text[end].isspace():  # only spaces
            end = start + CHUNK
            while end < len(text) and text[end].isspace():
                end += 1
        yield text[start:end]
        start = end
    yield text[start:]


@dataclass(slots=True)
class CallStream(EncodedResponse):
    """The stream of a running or completed call. The call continues if the client disconnects.

    call: the asyncio task that returns the result as JSON or raises CallFailed.
    """

    task_id: str = ""
    call: asyncio.Task[str] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        assert self.call is not None, "a stream has a call"
        await send({"type": "http.response.start", "status": self.status, "headers": STREAM_HEADERS})
        await send({"type": "http.response.body", "body": event("task_id", self.task_id), "more_body": True})
        while not (await asyncio.wait((self.call,), timeout=PING_SECONDS))[0]:
            await send({"type": "http.response.body", "body": PING, "more_body": True})
        try:
            *parts, last = pieces(self.call.result())
            body = b"".join((*(event("chunk", part) for part in parts), event("end", last)))
        except (CallFailed, SessionError) as failed:  # SessionError: the call was dropped before it began
            body = event("error", str(failed))
        await send({"type": "http.response.body", "body": body})


def whole_stream(*events: bytes) -> EncodedResponse:
    """Return a response that contains these events and then ends."""
    return EncodedResponse(200, b"".join(events), STREAM_HEADERS)
