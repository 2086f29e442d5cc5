"""uvicorn's HTTP protocol with bounds: on heads, queued requests, idle time, early answers and answers nobody reads.

What it uses of uvicorn: the parser callbacks, `on_response_complete`, `send_400_response`, `handle_websocket_upgrade`,
`app`, `scope`, `cycle.response_started` and `transport` of `HttpToolsProtocol`.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from taskapp_kit.net.peer import PEER, Peer
from taskapp_kit.net.response import SLICE_BYTES
from taskapp_kit.serve.connections import CONNECTIONS, QUEUED, SLOW_HEAD, Connections

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers; one read of the socket may go beyond it."""
MAX_QUEUED = 16
"""Requests that may wait on one connection behind the one that is answered."""
DISCARD_BYTES = 64 * 1024
DISCARD_SECONDS = 1.0
"""What is read and dropped after an answer that came before the request had arrived: closing on unread bytes would reset
the connection, and the caller might lose the answer."""

TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
FULL = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class TooManyQueued(Exception):
    """Stops the parser in the middle of what it was fed."""


class LingeringTransport:
    """A transport whose writes of one turn of the event loop leave together, and whose close may linger.

    lingers: set it before `close` when the caller may still be sending. discarding: what arrives is dropped. written: bytes
    that were handed to the transport.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self.lingers = False
        self.discarding = False
        self.written = 0
        self._transport = transport
        self._loop = loop
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._discarded = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Leaves at the end of this turn, when a slice is full, or before anything that ends the connection."""
        if not self._pending:
            self._loop.call_soon(self.flush)
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= SLICE_BYTES:
            self.flush()

    def is_closing(self) -> bool:
        """Nothing more can be written."""
        return self.discarding or self._transport.is_closing()

    def close(self) -> None:
        """Closes after what was written. When it lingers: ends our side, and drops for a while what still arrives."""
        if self.is_closing():
            return
        self.flush()
        if not self.lingers:
            self._transport.close()
            return
        self.discarding = True
        self._transport.write_eof()
        self._transport.resume_reading()
        self._loop.call_later(DISCARD_SECONDS, self._transport.close)

    def discard(self, data: bytes) -> None:
        """Counts what arrives after the end; beyond DISCARD_BYTES nothing more is read."""
        self._discarded += len(data)
        if self._discarded > DISCARD_BYTES and not self._transport.is_closing():
            self._transport.pause_reading()

    def flush(self) -> None:
        """What was written leaves now."""
        if self._pending:
            data = self._pending[0] if len(self._pending) == 1 else b"".join(self._pending)
            self._pending.clear()
            self._pending_bytes = 0
            if not self.is_closing():
                self.written += len(data)
                self._transport.write(data)


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's protocol; without these bounds a stranger without a key could hold memory and connections.

    connections: of the server; they ask each connection once a second what it has to do.
    """

    transport: LingeringTransport  # type: ignore[assignment]  # all that is asked of a transport

    def __init__(self, connections: Connections, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.access_log = False  # its lines hold query strings, whoever gives `uvicorn.access` a handler
        self.peer = Peer()
        self._connections = connections
        self._application: ASGIApp = self.app
        self.app = self._run
        self._in_head = True
        self._head_bytes = 0
        self._message_ended = False  # in what is being fed to the parser
        self._unanswered = 0
        self._arriving: Scope | None = None  # of the request whose body has not arrived to its end
        self._deadline = math.inf
        self._taken = 0
        self._took_at = 0.0

    # -- callbacks of uvicorn and its parser -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A caller connects."""
        super().connection_made(LingeringTransport(transport, self.loop))  # type: ignore[arg-type]
        self._took_at = self.loop.time()
        self._deadline = self._took_at + self._connections.limits.head_seconds
        self._connections.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """A caller is gone."""
        self.peer.gone = True
        self._connections.closed(self)
        self.app = self._application  # else it would refer to itself, and stay until the collector comes, its body too
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """The first byte of a head."""
        if self._unanswered > MAX_QUEUED:
            raise TooManyQueued
        super().on_message_begin()
        scope: Any = self.scope
        scope[PEER], scope[CONNECTIONS] = self.peer, self._connections
        self._in_head = True
        self._head_bytes = 0
        if not self._unanswered:
            self._deadline = self.loop.time() + self._connections.limits.head_seconds

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header. What comes after the body is a trailer: nobody here reads any, and they would be kept."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole."""
        super().on_headers_complete()  # raises for an address that is none: there is no request then
        self._in_head = False
        self._arriving = self.scope  # type: ignore[assignment]
        self._unanswered += 1
        self._deadline = math.inf  # routes time the body, rollouts have deadlines

    def on_message_complete(self) -> None:
        """The body is whole."""
        self._arriving = None
        self._message_ended = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """An answer was written to its end."""
        super().on_response_complete()
        self._unanswered -= 1
        if not self._unanswered:
            limits = self._connections.limits
            self._deadline = self.loop.time() + (limits.head_seconds if self._in_head else limits.idle_seconds)

    def data_received(self, data: bytes) -> None:
        """Bytes from the caller."""
        if self.transport.discarding:
            self.transport.discard(data)
            return
        self._message_ended = False
        super().data_received(data)
        if self._in_head and not self._message_ended:  # else most of it may be the body of the request before
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._close_with(TOO_LARGE)

    def send_400_response(self, msg: str) -> None:
        """What was sent is no HTTP, or too many requests at once."""
        if self._unanswered > MAX_QUEUED:
            self._connections.end(self, QUEUED)
        elif self._answerable():
            self.transport.lingers = True
            super().send_400_response(msg)
        else:
            self.transport.close()

    def eof_received(self) -> None:
        """The caller sends no more, which counts as hanging up; what was written before that still leaves."""
        self.transport.flush()

    def handle_websocket_upgrade(self) -> None:
        """Another protocol takes over the connection."""
        self._connections.closed(self)
        self.app = self._application  # as in connection_lost, which is the other protocol's from now on
        super().handle_websocket_upgrade()

    # -- what Connections calls ------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Closes what was idle, or slow to send a head, for too long."""
        if now < self._deadline or self.transport.is_closing():
            return
        if self._in_head and self._head_bytes:
            self._connections.ended[SLOW_HEAD] += 1
            self._close_with(TOO_LATE)
        else:
            self.transport.close()

    def unsent(self) -> int:
        """Bytes that were written and not yet taken by the caller's side."""
        return int(self.transport.get_write_buffer_size())

    def stalled_seconds(self, now: float) -> float:
        """How long nothing was taken; 0 when something was since the last call, or when nothing is unsent."""
        unsent = self.unsent()
        taken = self.transport.written - unsent
        if not unsent or taken != self._taken:
            self._taken, self._took_at = taken, now
        return now - self._took_at

    def refuse(self) -> None:
        """Answers that the server is full, and closes."""
        self._close_with(FULL)

    def abort(self) -> None:
        """Ends it at once, unsent bytes and all."""
        self.transport.abort()

    # -- answers ---------------------------------------------------------------------------------------------------

    def _close_with(self, answer: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._answerable():
            self.transport.write(answer)
            self.transport.lingers = True
        self.transport.close()

    def _answerable(self) -> bool:
        """An answer to what is arriving would not stand within, or before, the answer to an earlier request."""
        if self._arriving is None:
            return not self._unanswered
        return self._unanswered == 1 and not self.cycle.response_started

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application, its answers sent in slices; one that comes before its request had arrived closes."""

        async def sliced(message: Message) -> None:
            if message["type"] == "http.response.start" and self._arriving is scope:
                self.transport.lingers = True
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            body = message.get("body", b"")
            if len(body) <= SLICE_BYTES:
                await send(message)
                return
            self.peer.holds(body, len(body))
            try:
                for end in range(SLICE_BYTES, len(body) + SLICE_BYTES, SLICE_BYTES):
                    more = end < len(body) or message.get("more_body", False)
                    piece = body[end - SLICE_BYTES : end]
                    await send({"type": "http.response.body", "body": piece, "more_body": more})
            finally:
                self.peer.holds(None, 0)

        await self._application(scope, receive, sliced)
