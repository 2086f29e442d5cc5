"""The open connections of one server: their number, whether a valid key was sent over them, and their unsent bytes.

`Connections.look` runs once a second on the server's event loop. It closes connections that exceed a time limit, ends
readers that stall, and keeps the memory of unsent responses under its limit.
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
"""How long a request's head may take to arrive, and how long a new connection may be silent."""
IDLE_SECONDS = 30.0
"""How long a connection may be idle between requests; longer than clients keep connections, so that clients close them."""
DESCRIPTOR_SHARE = 0.75
"""The share of the process's file descriptors that connections may use; rollouts, stores and models need the rest."""
GRACE_SECONDS = 1.0
"""A reader that received bytes this recently is not ended because of the memory that its response uses."""
QUIET_SECONDS = 10.0
"""Minimum time between two log lines about the connection limit."""

# reasons why the server ended a connection, as counted in /metrics
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
        max_connections: The maximum of open connections; lower if the process may not open enough descriptors.
        stalled_seconds: How long a client may read nothing of its response.
        max_buffered_bytes: The memory of all unsent responses, and separately of all WebSocket messages that are
            incomplete or wait for the application.
        head_seconds: How long a request's head may take.
        idle_seconds: How long a connection may be idle between two requests.
    """

    max_connections: int = 8192
    stalled_seconds: float = 300.0
    max_buffered_bytes: int = 512 * 1024 * 1024
    head_seconds: float = HEAD_SECONDS
    idle_seconds: float = IDLE_SECONDS


def limits_of(settings: Settings) -> ConnectionLimits:
    """Return the limits that the settings give."""
    return ConnectionLimits(settings.max_connections, settings.stalled_seconds, settings.max_buffered_bytes)


class TrackedConnection(Protocol):
    """A connection, as `Connections` uses it (`serve/uvicorn_protocol.py`)."""

    peer: Peer

    def expire(self, now: float) -> None:
        """Close the connection if the time limit of its state has passed."""

    def unsent(self) -> int:
        """Return the number of bytes written that the client has not received."""

    def stalled_seconds(self, now: float) -> float:
        """Return how long the client has read nothing; 0 if it has read since the last call or nothing is unsent."""

    def refuse(self) -> None:
        """Send a 503, and close."""

    def abort(self) -> None:
        """Close immediately and drop unsent bytes."""


class WebSocketConnection(Protocol):
    """A WebSocket's connection, as `Connections` uses it."""

    transport: asyncio.Transport


class Connections:
    """The open connections, used only on the server's event loop. ended: how many the server ended, by cause."""

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        self.limits = limits or ConnectionLimits()
        self.ended: Counter[str] = Counter(dict.fromkeys(CAUSES, 0))
        # below the limit of descriptors, at which accept() fails even for clients with a key
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        unlimited = descriptors == resource.RLIM_INFINITY
        allowed = self.limits.max_connections if unlimited else max(1, int(descriptors * DESCRIPTOR_SHARE))
        self.cap = min(self.limits.max_connections, allowed)
        # a dict, because it keeps the order of arrival and removes in constant time
        self._open: dict[TrackedConnection, None] = {}
        # oldest first; connections that have sent a key since are removed later
        self._keyless: dict[TrackedConnection, None] = {}
        self._received: dict[WebSocketConnection, int] = {}
        self._received_bytes = 0
        self._quiet_until = 0.0

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, connection: TrackedConnection) -> None:
        """Add a connection. At the limit, close the oldest one without a valid key."""
        if len(self._open) >= self.cap:
            # clients without a key must not shut out clients with a key
            oldest = self._oldest_keyless()
            self._log_cap("the newest is rejected" if oldest is None else "the oldest without a valid key is closed")
            if oldest is None:
                self.ended[AT_CAP] += 1
                connection.refuse()
            else:
                self.end(oldest, AT_CAP)
        self._open[connection] = self._keyless[connection] = None

    def closed(self, connection: TrackedConnection) -> None:
        """Remove a connection; a second call does nothing."""
        self._open.pop(connection, None)
        self._keyless.pop(connection, None)

    def end(self, connection: TrackedConnection, cause: str) -> None:
        """End a connection immediately, and count it."""
        self.closed(connection)
        self.ended[cause] += 1
        connection.abort()

    def received(self, connection: WebSocketConnection, size: int) -> None:
        """Add bytes that a WebSocket received (0: the application took them all). Beyond the limit, end the largest."""
        # uvicorn's queue of a WebSocket's messages has no limit
        before = self._received.pop(connection, 0)
        if size:
            self._received[connection] = before + size
        self._received_bytes += size or -before
        if self._received_bytes > self.limits.max_buffered_bytes:
            largest = max(self._received, key=self._received.__getitem__)
            self._received_bytes -= self._received.pop(largest)
            self.ended[UNREAD] += 1
            log.warning("WebSocket ended cause=%s limit_bytes=%d", UNREAD, self.limits.max_buffered_bytes)
            # not a close frame: it would wait behind what the client does not read
            largest.transport.abort()

    async def look(self) -> None:
        """Do what has to happen once a second. Never raises: uvicorn's main loop awaits it."""
        try:
            now = asyncio.get_running_loop().time()
            # checking all connections once a second costs less than a timer for each request
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
                # a stalled reader occupies memory and a place in its key's quota
                self._end_reader(connection, STALLED)
                continue
            total += connection.unsent()
            if peer.unsent is not None:
                readers[id(peer.unsent)] += 1
                # many readers may share the bytes of one answer, which are counted once
                total += peer.unsent_bytes if readers[id(peer.unsent)] == 1 else 0
            if seconds >= GRACE_SECONDS:
                stalled.append((seconds, connection))
        if total <= self.limits.max_buffered_bytes:
            return
        # the reader that has stalled longest is the least likely to continue
        for _, connection in sorted(stalled, key=lambda item: -item[0]):
            peer = connection.peer
            total -= connection.unsent()
            if peer.unsent is not None:
                readers[id(peer.unsent)] -= 1
                # the bytes are freed only when their last reader has gone
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
