"""The HTTP parser with bounds: request heads are counted and timed, trailers dropped, before an app sees them."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers; one read of the socket may go beyond it."""
HEAD_SECONDS = 10.0
"""How long a head may take to arrive, and how long a fresh connection may be silent."""

TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class JoinedWrites:
    """A transport whose writes of one turn of the event loop leave together."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._pending: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Leaves at the end of this turn, or before anything that ends the connection."""
        if not self._pending:
            self._loop.call_soon(self._leave)
        self._pending.append(data)

    def close(self) -> None:
        """Closes after what was written."""
        self._leave()
        self._transport.close()

    def _leave(self) -> None:
        if self._pending:
            data = self._pending[0] if len(self._pending) == 1 else b"".join(self._pending)
            self._pending.clear()
            if not self._transport.is_closing():
                self._transport.write(data)


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's protocol; without these bounds a stranger without a key could hold memory and connections."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.access_log = False  # its lines hold query strings, whoever gives `uvicorn.access` a handler
        self._in_head = True
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A caller connects."""
        super().connection_made(JoinedWrites(transport, self.loop))  # type: ignore[arg-type]  # all that is asked of it
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        """A caller is gone."""
        self._stop_timer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """The first byte of a head."""
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0
        self._stop_timer()
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._late)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header. What comes after the body is a trailer: nobody here reads any, and they would be kept."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Bytes from the caller."""
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(TOO_LARGE)

    def _late(self) -> None:
        if self._in_head:
            self._refuse(TOO_LATE if self._head_bytes else b"")

    def _refuse(self, answer: bytes) -> None:
        self._stop_timer()
        if self.transport.is_closing():
            return
        if answer and (self.cycle is None or self.cycle.response_complete):  # never into the middle of another answer
            self.transport.write(answer)
        self.transport.close()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
