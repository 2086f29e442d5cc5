"""Writes and reads server-sent events.

A frame consists of `id:`, `event:` and `data:` lines, and ends with a blank line.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from taskapp_kit.net.response import SLICE_BYTES, Headers

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

MAX_FRAME_BYTES = 4 * 1024 * 1024
ALIVE_SECONDS = 15.0
"""After this many seconds without an event, a comment is sent, so that proxies and clients do not close the stream."""
ALIVE = b": alive\n\n"
STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    # otherwise nginx delays events until its buffer is full
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
]
EncodedFrame = tuple[bytes, bytes, bytes]


def encode_frame(number: int, event: bytes, data: bytes) -> EncodedFrame:
    """Encode an event as three parts, without copying `data`, which several readers share.

    data: JSON without line breaks.
    """
    return b"id: %d\nevent: %s\ndata: " % (number, event), data, b"\n\n"


def event_frames(events: Iterable[tuple[str, bytes]]) -> list[bytes]:
    """Encode events. events: pairs of a name, or "", and data without line breaks."""
    return [(b"event: %s\n" % name.encode() if name else b"") + b"data: %s\n\n" % data for name, data in events]


class EventStreamResponse:
    """A streaming response. It ends when there are no more frames or the client disconnects.

    Args:
        batches: An iterator that yields the bytes of one or more frames at a time. It is closed at the end, even if the
            client disconnects.
        headers: Additional headers.
        alive_seconds: After how many seconds without a frame a keep-alive comment is sent.
    """

    status = 200

    def __init__(
        self,
        batches: AsyncGenerator[Iterable[bytes], None],
        *,
        headers: Headers | None = None,
        alive_seconds: float = ALIVE_SECONDS,
    ) -> None:
        self._batches = batches
        self._headers = [*STREAM_HEADERS, *(headers or [])]
        self._alive_seconds = alive_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        gone = asyncio.create_task(_until_gone(receive))
        sending = asyncio.create_task(self._send(send))
        try:
            await asyncio.wait((gone, sending), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for task in (gone, sending):
                task.cancel()
            with suppress(asyncio.CancelledError, Exception):  # the error was raised above
                await sending
            await self._batches.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status, "headers": self._headers})
        following = asyncio.ensure_future(anext(self._batches, None))
        try:
            while True:
                # not `wait_for`, which would cancel the generator at each timeout
                done, _ = await asyncio.wait((following,), timeout=self._alive_seconds)
                if not done:
                    await send({"type": "http.response.body", "body": ALIVE, "more_body": True})
                    continue
                batch = following.result()
                if batch is None:
                    break
                for body in _slices(batch):
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                following = asyncio.ensure_future(anext(self._batches, None))
        finally:
            following.cancel()
            await asyncio.wait((following,))
        await send({"type": "http.response.body", "body": b""})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _slices(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Join the pieces, and yield them in slices of at most SLICE_BYTES."""
    waiting: list[bytes] = []
    length = 0
    for piece in pieces:
        # a frame may be as large as a rollout, and a slice is only sent after the client has read previous slices
        for start in range(0, len(piece), SLICE_BYTES):
            part = piece[start : start + SLICE_BYTES]
            if length + len(part) > SLICE_BYTES:
                yield b"".join(waiting)
                waiting.clear()
                length = 0
            waiting.append(part)
            length += len(part)
    if waiting:
        yield b"".join(waiting)


class FrameTooLarge(ValueError):
    """A frame, or a line of a frame, exceeds the reader's size limit."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One event: the name (`message` by default), the id, and the data lines joined by line breaks."""

    event: str
    data: str
    id: str = ""


@dataclass(slots=True)
class SseReader:
    """Converts a stream of bytes to frames. The bytes may be split at any position."""

    max_bytes: int = MAX_FRAME_BYTES
    _rest: bytearray = field(default_factory=bytearray)
    _after_cr: bool = False
    _event: str = ""
    _id: str = ""
    _data: list[str] = field(default_factory=list)
    _size: int = 0

    def feed(self, chunk: bytes) -> list[Frame]:
        """Return the frames that this chunk completes. Raises FrameTooLarge if a frame exceeds the limit."""
        if not chunk:
            return []
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")  # the second half of a split CRLF
        self._after_cr = chunk.endswith(b"\r")
        first, *others = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest += first  # appended in place, because a long line may arrive in very small chunks
        if len(self._rest) > self.max_bytes:
            raise FrameTooLarge(f"a line of an event stream is longer than {self.max_bytes} bytes")
        if not others:
            return []
        lines = [bytes(self._rest), *others[:-1]]
        self._rest = bytearray(others[-1])
        found = (self._line(line) for line in lines)
        return [frame for frame in found if frame is not None]

    def _line(self, line: bytes) -> Frame | None:
        if not line:
            frame = Frame(self._event or "message", "\n".join(self._data), self._id) if self._data else None
            # the id applies until the next id, as the standard requires
            self._event, self._data, self._size = "", [], 0
            return frame
        self._size += len(line)
        if self._size > self.max_bytes:
            raise FrameTooLarge(f"an event is larger than {self.max_bytes} bytes")
        name, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id":
            self._id = value
        return None
