"""uvicorn's HTTP protocol, with limits on heads, queued requests, idle time, early responses and unread responses.

This module relies on these attributes of `HttpToolsProtocol`: the parser callbacks, `on_response_complete`,
`send_400_response`, `handle_websocket_upgrade`, `app`, `scope`, `cycle.response_started` and `transport`.
"""

from __future__ import annotations

import asyncio
import math
import select
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.auto import AutoWebSocketsProtocol

from taskapp_kit.net.response import PEER, SLICE_BYTES, Peer
from taskapp_kit.serve.connection_limits import CONNECTIONS, QUEUED, SLOW_HEAD, Connections

MAX_HEAD_BYTES = 64 * 1024
"""The maximum size of the request line and headers, in bytes. The last read from the socket may exceed it."""
MAX_QUEUED = 16
"""The maximum number of requests that wait on a connection behind the current request."""
DISCARD_BYTES = 64 * 1024
DISCARD_SECONDS = 1.0
"""Limits on the bytes that are read and dropped after an early response, which was sent before the whole request had
arrived. Closing a socket with unread bytes would reset the connection, and the client might lose the response."""

_POLLRDHUP: int | None = getattr(select, "POLLRDHUP", None)
"""The poll flag for a client that has disconnected, or None on systems other than Linux."""

TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
FULL = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class TooManyQueued(Exception):
    """Raised to stop the parser when too many requests are queued on a connection."""


class LingeringTransport:
    """A transport that joins the writes of each event loop iteration.

    It can also linger when it is closed: it then drops incoming bytes for a time before it closes the connection.

    Attributes:
        lingers: Whether `close` lingers. It must be set if the client may still be sending.
        discarding: Whether incoming bytes are dropped.
        written: Number of bytes passed to the wrapped transport.
        plain: The wrapped transport.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, peer: Peer) -> None:
        self._peer = peer
        self.lingers = False
        self.discarding = False
        self.written = 0
        self._transport = self.plain = transport
        self._loop = loop
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._discarded = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Buffer the data until the event loop iteration ends, a slice is full, or the transport is closed."""
        if not self._pending:
            self._loop.call_soon(self.flush)
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= SLICE_BYTES:
            self.flush()

    def is_closing(self) -> bool:
        """Return whether the transport no longer accepts data."""
        # uvicorn checks this before it writes, and must not respond to a discarded request
        return self.discarding or self._transport.is_closing()

    def close(self) -> None:
        """Close after pending writes.

        If `lingers` is set, stop sending and drop incoming bytes for DISCARD_SECONDS before closing.
        """
        if self.is_closing():
            return
        self.flush()
        if not self.lingers:
            self._transport.close()
            return
        self.discarding = True
        # dropping incoming bytes avoids a reset, so that the client can read the complete response
        self._transport.write_eof()
        self._transport.resume_reading()
        self._loop.call_later(DISCARD_SECONDS, self._transport.close)

    def discard(self, data: bytes) -> None:
        """Drop bytes that arrive after the close. After DISCARD_BYTES, stop reading."""
        self._discarded += len(data)
        if self._discarded > DISCARD_BYTES and not self._transport.is_closing():
            self._transport.pause_reading()

    def flush(self) -> None:
        """Write the buffered data now."""
        if self._pending:
            data = self._pending[0] if len(self._pending) == 1 else b"".join(self._pending)
            self._pending.clear()
            self._pending_bytes = 0
            # checked here, because the event loop notices a disconnect later
            if self.is_closing() or _hung_up(self._transport):
                self._peer.left = True
            if not self.is_closing():
                self.written += len(data)
                self._transport.write(data)


def _hung_up(transport: asyncio.Transport) -> bool:
    """Return whether the client has disconnected, even if the event loop has not noticed. Return False if unknown."""
    if _POLLRDHUP is None:
        return False
    look = select.poll()
    look.register(transport.get_extra_info("socket").fileno(), _POLLRDHUP)
    return bool(look.poll(0))


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's protocol with limits on the memory and connections that clients without a key can use.

    The server's `Connections` calls `expire` once a second.
    """

    transport: LingeringTransport  # type: ignore[assignment]  # implements all methods that uvicorn calls

    def __init__(self, connections: Connections, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.access_log = False  # its lines would contain query strings
        self.peer = Peer()
        self._connections = connections
        self._application: ASGIApp = self.app
        # uvicorn reads `app` for each request, so assigning `_run` wraps requests without an extra task
        self.app = self._run
        self._in_head = True
        self._head_bytes = 0
        self._message_ended = False  # counts within the bytes that are being parsed
        self._unanswered = 0
        self._arriving: Scope | None = None  # the scope of the request whose body is incomplete
        self._deadline = math.inf
        self._taken = 0
        self._took_at = 0.0

    # -- callbacks of uvicorn and its parser -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start tracking a new connection."""
        super().connection_made(LingeringTransport(transport, self.loop, self.peer))  # type: ignore[arg-type]
        self._took_at = self.loop.time()
        self._deadline = self._took_at + self._connections.limits.head_seconds
        self._connections.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        self.peer.gone, self.peer.reset = True, exc is not None
        self._connections.closed(self)
        # breaks a reference cycle that would keep the body in memory until the next garbage collection
        self.app = self._application
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Handle the first byte of a request."""
        # each pipelined request costs the server an object, and the client nothing
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
        """Handle a header. Trailers, which follow the body, are dropped because nothing reads them."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Handle the end of the headers."""
        super().on_headers_complete()  # raises for an invalid URL, before a request exists
        self._in_head = False
        self._arriving = self.scope  # type: ignore[assignment]
        self._unanswered += 1
        # no limit from here on, because routes have a timeout for the body, and rollouts have deadlines
        self._deadline = math.inf

    def on_message_complete(self) -> None:
        """Handle the end of the body."""
        self._arriving = None
        self._message_ended = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Handle the end of a response."""
        super().on_response_complete()
        self._unanswered -= 1
        if not self._unanswered:
            limits = self._connections.limits
            self._deadline = self.loop.time() + (limits.head_seconds if self._in_head else limits.idle_seconds)

    def data_received(self, data: bytes) -> None:
        """Parse bytes from the client."""
        if self.transport.discarding:
            self.transport.discard(data)
            return
        self._message_ended = False
        super().data_received(data)
        if self._in_head and not self._message_ended:  # otherwise the bytes may belong to the previous request's body
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._close_with(TOO_LARGE)

    def send_400_response(self, msg: str) -> None:
        """Reject invalid HTTP or too many queued requests with a 400 response."""
        if self._unanswered > MAX_QUEUED:
            self._connections.end(self, QUEUED)
        elif self._answerable():
            # the client may still be sending, and a reset would discard the 400 response
            self.transport.lingers = True
            super().send_400_response(msg)
        else:
            self.transport.close()

    def eof_received(self) -> None:
        """Close after pending writes, because a client that stops sending counts as disconnected."""
        self.transport.flush()

    def handle_websocket_upgrade(self) -> None:
        """Pass the connection to the WebSocket protocol, which is then responsible for closing it."""
        self._connections.closed(self)
        # WebSocket frames are complete messages, so their writes need not be joined
        self.transport.flush()
        self.transport = self.transport.plain  # type: ignore[assignment]
        self.app = self._application  # as in connection_lost, which is called only on the new protocol
        super().handle_websocket_upgrade()

    # -- called by Connections -------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Close the connection if it has exceeded the limit on idle time or on the time for a request's head."""
        if now < self._deadline or self.transport.is_closing():
            return
        if self._in_head and self._head_bytes:
            self._connections.ended[SLOW_HEAD] += 1
            self._close_with(TOO_LATE)
        else:
            self.transport.close()

    def unsent(self) -> int:
        """Return how many bytes of responses the client has not received yet."""
        return int(self.transport.get_write_buffer_size())

    def stalled_seconds(self, now: float) -> float:
        """Return for how many seconds the client has read nothing.

        Return 0 if the client has read since the last call of this method, or if no bytes are unsent.
        """
        # bytes that the client has read count as progress, unlike bytes that the server has written
        unsent = self.unsent()
        taken = self.transport.written - unsent
        if not unsent or taken != self._taken:
            self._taken, self._took_at = taken, now
        return now - self._took_at

    def refuse(self) -> None:
        """Send a 503 response and close the connection."""
        self._close_with(FULL)

    def abort(self) -> None:
        """Close the connection immediately and drop unsent bytes."""
        self.transport.abort()

    # -- responses -------------------------------------------------------------------------------------------------

    def _close_with(self, answer: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._answerable():
            self.transport.write(answer)
            self.transport.lingers = True
        self.transport.close()

    def _answerable(self) -> bool:
        """Return whether a response can be sent now, because all earlier responses are complete."""
        if self._arriving is None:
            return not self._unanswered
        return self._unanswered == 1 and not self.cycle.response_started

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application and send its responses in slices.

        A response to a request whose body is incomplete closes the connection.
        """

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
                # a single large write would copy the part that does not fit into the socket's buffer
                for end in range(SLICE_BYTES, len(body) + SLICE_BYTES, SLICE_BYTES):
                    more = end < len(body) or message.get("more_body", False)
                    piece = body[end - SLICE_BYTES : end]
                    await send({"type": "http.response.body", "body": piece, "more_body": more})
            finally:
                self.peer.holds(None, 0)

        await self._application(scope, receive, sliced)


class BoundedWebSocket(AutoWebSocketsProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's WebSocket protocol, with a limit on the memory of messages that the application has not read."""

    app: Any

    def __init__(self, all_connections: Connections, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._all_connections = all_connections
        self._application: ASGIApp = self.app
        self.app = self._run

    def data_received(self, data: bytes) -> None:
        """Count and parse bytes from the client."""
        self._all_connections.received(self, len(data))
        super().data_received(data)
        if not (self.writable.is_set() or self.transport.is_closing()):  # the client sends pings without reading pongs
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        """Resume reading when the client reads again."""
        super().resume_writing()
        if not (self.read_paused or self.transport.is_closing()):
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        self._all_connections.received(self, 0)
        self.app = self._application  # breaks a reference cycle
        super().connection_lost(exc)

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def taken() -> Message:
            message = await receive()
            self._all_connections.received(self, 0)
            return message

        await self._application(scope, taken, send)
