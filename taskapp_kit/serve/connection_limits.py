"""Limits on the open connections of a server.

`Connections` tracks how many connections are open, which of them have sent a valid key, and how many bytes of
responses are unsent. `Connections.look` runs once a second on the server's event loop. It closes connections that
exceed a time limit, aborts clients that stop reading, and limits the memory of unsent responses.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from taskapp_kit.config import Settings
from taskapp_kit.net.response import Peer

log = logging.getLogger("taskapp_kit.serve")

CONNECTIONS = "taskapp_kit.connections"
"""Scope key: the server's Connections."""
HEAD_SECONDS = 10.0
"""The maximum time in seconds until a request's head is complete, and until a new connection sends its first byte."""
IDLE_SECONDS = 30.0
"""The maximum time in seconds between two requests. Usually clients close idle connections earlier."""
DESCRIPTOR_SHARE = 0.75
"""The share of the process's file descriptors for connections. Rollouts, stores and models need the rest."""
GRACE_SECONDS = 1.0
"""A client that has read within this many seconds is not disconnected to free the memory of its response."""
QUIET_SECONDS = 10.0
"""Minimum time between two log lines about the connection limit, in seconds."""

# the reasons for which the server ends connections, as labels in /metrics
AT_CAP = "connection_cap"
QUEUED = "queued_requests"
SLOW_HEAD = "slow_head"
STALLED = "stalled_reader"
BUFFERED = "buffered_bytes"
UNREAD = "unread_messages"
CAUSES = (AT_CAP, QUEUED, SLOW_HEAD, STALLED, BUFFERED, UNREAD)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits on connections.

    Attributes:
        max_connections: Maximum number of open connections. The limit is lower if the process cannot open enough file
            descriptors.
        stalled_seconds: Maximum time in which a client reads nothing of its response.
        max_buffered_bytes: Maximum memory of all unsent responses. The same number separately limits the memory of
            all WebSocket messages that are incomplete or wait for the application.
        head_seconds: Maximum time until a request's head is complete.
        idle_seconds: Maximum time between two requests on a connection.
    """

    max_connections: int = 8192
    stalled_seconds: float = 300.0
    max_buffered_bytes: int = 512 * 1024 * 1024
    head_seconds: float = HEAD_SECONDS
    idle_seconds: float = IDLE_SECONDS


def limits_of(settings: Settings) -> ConnectionLimits:
    """Return the limits in the settings."""
    return ConnectionLimits(settings.max_connections, settings.stalled_seconds, settings.max_buffered_bytes)


class TrackedConnection(Protocol):
    """The part of a connection that `Connections` uses. `serve/uvicorn_protocol.py` implements it."""

    peer: Peer

    def expire(self, now: float) -> None:
        """Close the connection if it has exceeded the time limit of its state."""

    def unsent(self) -> int:
        """Return how many bytes of responses the client has not received yet."""

    def stalled_seconds(self, now: float) -> float:
        """Return for how many seconds the client has read nothing.

        Return 0 if the client has read since the last call of this method, or if no bytes are unsent.
        """

    def refuse(self) -> None:
        """Send a 503 response and close the connection."""

    def abort(self) -> None:
        """Close the connection immediately and drop unsent bytes."""


class WebSocketConnection(Protocol):
    """The part of a WebSocket connection that `Connections` uses."""

    transport: asyncio.Transport


class Connections:
    """The open connections of a server. All methods must be called on the server's event loop.

    Attributes:
        ended: How many connections the server has ended, by cause.
    """

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        self.limits = limits or ConnectionLimits()
        self.ended: Counter[str] = Counter(dict.fromkeys(CAUSES, 0))
        # below the descriptor limit, at which accept() fails even for clients with a key
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        unlimited = descriptors == resource.RLIM_INFINITY
        allowed = self.limits.max_connections if unlimited else max(1, int(descriptors * DESCRIPTOR_SHARE))
        self.cap = min(self.limits.max_connections, allowed)
        # a dict, which preserves the order of arrival and removes entries in constant time
        self._open: dict[TrackedConnection, None] = {}
        # oldest first; a connection that has sent a key is removed later, in `_oldest_keyless`
        self._keyless: dict[TrackedConnection, None] = {}
        self._received: dict[WebSocketConnection, int] = {}
        self._received_bytes = 0
        self._quiet_until = 0.0

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, connection: TrackedConnection) -> None:
        """Add a connection. At the limit, end the oldest connection that has not sent a valid key.

        If all connections have sent a valid key, the new connection is rejected.
        """
        if len(self._open) >= self.cap:
            # clients without a key must not block clients with a key
            oldest = self._oldest_keyless()
            self._log_cap("the newest is rejected" if oldest is None else "the oldest without a valid key is closed")
            if oldest is None:
                self.ended[AT_CAP] += 1
                connection.refuse()
            else:
                self.end(oldest, AT_CAP)
        self._open[connection] = self._keyless[connection] = None

    def closed(self, connection: TrackedConnection) -> None:
        """Remove a connection. Further calls do nothing."""
        self._open.pop(connection, None)
        self._keyless.pop(connection, None)

    def end(self, connection: TrackedConnection, cause: str) -> None:
        """Abort a connection and count the cause."""
        self.closed(connection)
        self.ended[cause] += 1
        connection.abort()

    def received(self, connection: WebSocketConnection, size: int) -> None:
        """Count `size` bytes that a WebSocket received. A size of 0 means that the application has read all of its bytes.

        If all WebSockets together exceed the limit, the WebSocket with the most unread bytes is aborted.
        """
        # uvicorn does not limit the queue of WebSocket messages
        before = self._received.pop(connection, 0)
        if size:
            self._received[connection] = before + size
        self._received_bytes += size or -before
        if self._received_bytes > self.limits.max_buffered_bytes:
            largest = max(self._received, key=self._received.__getitem__)
            self._received_bytes -= self._received.pop(largest)
            self.ended[UNREAD] += 1
            log.warning("WebSocket ended cause=%s limit_bytes=%d", UNREAD, self.limits.max_buffered_bytes)
            # a close frame would wait behind bytes that the client does not read
            largest.transport.abort()

    async def look(self) -> None:
        """Enforce the limits; called once a second. Never raises, because uvicorn's main loop awaits it."""
        try:
            now = asyncio.get_running_loop().time()
            # checking all connections once a second is cheaper than a timer for each request
            for connection in list(self._open):
                connection.expire(now)
            self._end_stalled(now)
        except Exception:
            log.exception("the connections could not be checked")

    def _oldest_keyless(self) -> TrackedConnection | None:
        while self._keyless:
            oldest = next(iter(self._keyless))
            if not oldest.peer.keyed:
                return oldest
            del self._keyless[oldest]
        return None

    def _end_stalled(self, now: float) -> None:
        stalled: list[tuple[float, TrackedConnection]] = []
        readers: Counter[int] = Counter()
        total = 0
        for connection in list(self._open):
            peer, seconds = connection.peer, connection.stalled_seconds(now)
            if seconds > self.limits.stalled_seconds:
                # a stalled client uses memory and counts in the quota of its key
                self._end_reader(connection, STALLED)
                continue
            total += connection.unsent()
            if peer.unsent is not None:
                readers[id(peer.unsent)] += 1
                # several clients may share the bytes of a response, which are counted once
                total += peer.unsent_bytes if readers[id(peer.unsent)] == 1 else 0
            if seconds >= GRACE_SECONDS:
                stalled.append((seconds, connection))
        if total <= self.limits.max_buffered_bytes:
            return
        # the client that has stalled longest is the least likely to continue
        for _, connection in sorted(stalled, key=lambda item: -item[0]):
            peer = connection.peer
            total -= connection.unsent()
            if peer.unsent is not None:
                readers[id(peer.unsent)] -= 1
                # the bytes are freed when the last client that shares them has disconnected
                total -= 0 if readers[id(peer.unsent)] else peer.unsent_bytes
            self._end_reader(connection, BUFFERED)
            if total <= self.limits.max_buffered_bytes:
                return

    def _end_reader(self, connection: TrackedConnection, cause: str) -> None:
        log.warning("reader ended cause=%s unsent_bytes=%d", cause, connection.unsent() + connection.peer.unsent_bytes)
        self.end(connection, cause)

    def _log_cap(self, consequence: str) -> None:
        now = time.monotonic()
        if now >= self._quiet_until:
            self._quiet_until = now + QUIET_SECONDS
            log.warning("connections at the cap open=%d cap=%d: %s", len(self._open), self.cap, consequence)
