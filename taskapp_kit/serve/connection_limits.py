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
"""How long a connection may be idle between requests: longer than clients keep theirs, so that the client closes it."""
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
    """max_connections: open at once; fewer where the process may not open enough descriptors. stalled_seconds: how long a
    client may read nothing of its response. max_buffered_bytes: memory of all unsent responses, and of
    all messages of WebSockets that are incomplete or wait for the application. head_seconds,
    idle_seconds: how long a head may take, and the time between two requests.
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
    """One connection, as `Connections` uses it (`serve/uvicorn_protocol.py`)."""

    peer: Peer

    def expire(self, now: float) -> None:
        """Close it when the time limit of its state has passed."""

    def unsent(self) -> int:
        """Return the number of bytes written that the client has not received."""

    def stalled_seconds(self, now: float) -> float:
        """Return how long the client has read nothing; 0 if it has since the last call, or if nothing is unsent."""

    def refuse(self) -> None:
        """Answer that the server is full, and close."""

    def abort(self) -> None:
        """Close at once and drop unsent bytes."""


class WebSocketConnection(Protocol):
    """The connection of a WebSocket, as `Connections` uses it."""

    transport: asyncio.Transport


class Connections:
    """Used on the server's event loop only. ended: connections that the server ended before their clients did, by cause."""

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        self.limits = limits or ConnectionLimits()
        self.ended: Counter[str] = Counter(dict.fromkeys(CAUSES, 0))
        # at its limit accept() fails, and then nobody is let in, not even one with a key
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        unlimited = descriptors == resource.RLIM_INFINITY
        allowed = self.limits.max_connections if unlimited else max(1, int(descriptors * DESCRIPTOR_SHARE))
        self.cap = min(self.limits.max_connections, allowed)
        # a dict, because it keeps the order of their coming and removes in constant time
        self._open: dict[TrackedConnection, None] = {}
        # oldest first; those that presented a key since are taken out late
        self._keyless: dict[TrackedConnection, None] = {}
        self._received: dict[WebSocketConnection, int] = {}
        self._received_bytes = 0
        self._quiet_until = 0.0

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, connection: TrackedConnection) -> None:
        """Add a connection. At the limit the oldest one without a valid key is closed for it."""
        if len(self._open) >= self.cap:
            # who holds sockets without a key must not shut out those who have one
            oldest = self._oldest_keyless()
            self._log_cap("the newest is refused" if oldest is None else "the oldest without a valid key is closed")
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
        """End a connection at once, and count it."""
        self.closed(connection)
        self.ended[cause] += 1
        connection.abort()

    def received(self, connection: WebSocketConnection, size: int) -> None:
        """Add bytes that a WebSocket received; 0: the application took what there was. Too many end the one with the most."""
        # messages of a WebSocket wait in uvicorn's queue without any limit of its own
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
        """What has to happen once a second. Never raises: uvicorn's main loop awaits it."""
        try:
            now = asyncio.get_running_loop().time()
            # one look at all connections a second costs less than a timer for each request
            for connection in list(self._open):
                connection.expire(now)
            self._end_stalled(now)
        except Exception:
            log.exception("the connections could not be looked after")

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
                # a stalled reader holds its answer and its key's place in the quota
                self._end_reader(connection, STALLED)
                continue
            total += connection.unsent()
            if peer.unsent is not None:
                readers[id(peer.unsent)] += 1
                # many readers may share one answer's bytes, which are counted once
                total += peer.unsent_bytes if readers[id(peer.unsent)] == 1 else 0
            if seconds >= GRACE_SECONDS:
                stalled.append((seconds, connection))
        if total <= self.limits.max_buffered_bytes:
            return
        # who has read nothing for longest is the least likely to go on
        for _, connection in sorted(stalled, key=lambda item: -item[0]):
            peer = connection.peer
            total -= connection.unsent()
            if peer.unsent is not None:
                readers[id(peer.unsent)] -= 1
                # the bytes are free only when their last reader has gone
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
