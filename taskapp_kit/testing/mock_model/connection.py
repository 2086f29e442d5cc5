"""An HTTP/1.1 connection of the mock model, which reads requests and executes a write plan for each request.

The connection is a plain asyncio protocol with httptools to save CPU time, which benchmarks would count as the
client's. A write plan specifies which bytes are written at what time, and how the connection ends.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http.client import responses
from typing import Literal, cast

import httptools

from taskapp_kit.testing.mock_model.request_log import RequestLog

LARGEST_BODY = 64 * 2**20
WAITING_REQUESTS = 64
"""Maximum number of pipelined requests. Above the limit, no more requests are read until responses have been sent."""


@dataclass(slots=True)
class ReceivedRequest:
    """A received request. Header names are in lower case."""

    method: str
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    keep_alive: bool = True


@dataclass(slots=True)
class WritePlan:
    """A response as a sequence of writes.

    Attributes:
        parts: Pairs of seconds to wait and bytes to write.
        end: What to do with the connection: `keep` it for the next request, `close` it, `reset` it, or `hang` until the
            client disconnects.
        status: HTTP status of the response, or 0 without a response.
    """

    parts: list[tuple[float, bytes]]
    end: Literal["keep", "close", "reset", "hang"] = "keep"
    status: int = 200


Handle = Callable[[ReceivedRequest], WritePlan | Awaitable[WritePlan]]


def head(status: int, content_type: str, length: int | None, *extra: tuple[str, str], keep_alive: bool = True) -> bytes:
    """Return the head of a response whose body has `length` bytes. If `length` is None, the body is sent in chunks."""
    size = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    more = "".join(f"{name}: {value}\r\n" for name, value in extra)
    ending = "" if keep_alive else "connection: close\r\n"
    reason = responses.get(status, "Error")
    return f"HTTP/1.1 {status} {reason}\r\ncontent-type: {content_type}\r\n{size}\r\n{more}{ending}\r\n".encode()


def chunk(data: bytes) -> bytes:
    """Return a chunk of a chunked body. An empty chunk ends the body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


class MockConnection(asyncio.Protocol):
    """The server's side of a connection."""

    def __init__(self, handle: Handle, records: RequestLog, everyone: set[MockConnection]) -> None:
        self._handle = handle
        self._records = records
        self._everyone = everyone
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[ReceivedRequest] = deque()
        self._busy = self._paused = self._gone = False
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._begin()

    def _begin(self) -> None:
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._size = 0

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start a new connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._everyone.add(self)
        self._records.connections += 1
        self._records.open_connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        self._gone = True
        self._everyone.discard(self)
        self._records.open_connections -= 1
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        if self._busy:
            self._records.in_flight -= 1
            self._records.abandoned += 1

    def data_received(self, data: bytes) -> None:
        """Parse bytes of a request."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(400, b"this server offers no other protocol")
        except httptools.HttpParserError:
            self._refuse(400, b"this is not HTTP/1.1")

    def stop(self) -> None:
        """Abort the connection."""
        self._transport.abort()

    # httptools

    def on_url(self, url: bytes) -> None:
        """Collect a part of the request target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Send `100 Continue` after the headers if the client waits for it."""
        for name, value in self._headers:
            if name == b"expect" and value.lower() == b"100-continue" and not self._busy:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Collect a part of the body."""
        self._size += len(body)
        if self._size <= LARGEST_BODY:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """Respond to a complete request, or queue it."""
        if self._size > LARGEST_BODY:
            self._refuse(413, b"the body is longer than 64 MiB")
            return
        method = self._parser.get_method().decode()
        arrived = ReceivedRequest(
            method, self._target, self._headers, b"".join(self._body), self._parser.should_keep_alive()
        )
        self._begin()
        if self._busy:
            self._waiting.append(arrived)
            if len(self._waiting) > WAITING_REQUESTS and not self._paused:
                self._paused = True
                self._transport.pause_reading()
        else:
            self._answer(arrived)

    def _refuse(self, status: int, why: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(head(status, "text/plain", len(why), keep_alive=False) + why)
            self._transport.close()

    # answering

    def _answer(self, arrived: ReceivedRequest) -> None:
        self._busy = True
        self._records.begun()
        plan = self._handle(arrived)
        if isinstance(plan, WritePlan):
            self._play(plan, 0, arrived.keep_alive)
        else:
            self._task = self._loop.create_task(self._wait(plan, arrived.keep_alive))

    async def _wait(self, coming: Awaitable[WritePlan], keep_alive: bool) -> None:
        plan = await coming
        self._task = None
        self._play(plan, 0, keep_alive)

    def _play(self, plan: WritePlan, at: int, keep_alive: bool) -> None:
        """Write the plan, starting at part `at`, until it requires a pause."""
        parts = plan.parts
        while at < len(parts):
            delay, data = parts[at]
            if delay > 0:
                self._timer = self._loop.call_later(delay, self._write, plan, at, keep_alive)
                return
            if data:
                self._transport.write(data)
            at += 1
        self._end(plan, keep_alive)

    def _write(self, plan: WritePlan, at: int, keep_alive: bool) -> None:
        self._timer = None
        if plan.parts[at][1]:
            self._transport.write(plan.parts[at][1])
        self._play(plan, at + 1, keep_alive)

    def _end(self, plan: WritePlan, keep_alive: bool) -> None:
        if plan.end == "hang":
            return
        self._busy = False
        self._records.in_flight -= 1
        if plan.end == "reset":
            self._reset()
        elif plan.end == "close" or not keep_alive:
            self._transport.close()
        elif self._waiting:
            if self._paused:
                self._paused = False
                self._transport.resume_reading()
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        if self._waiting and not self._busy and not self._gone:
            self._answer(self._waiting.popleft())

    def _reset(self) -> None:
        """Reset the connection. With a linger time of 0, the kernel sends RST."""
        connected = self._transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()
