"""A watchdog that detects a blocked event loop and logs the code that blocks it.

The loop sends a heartbeat every `BEAT_SECONDS`. When a heartbeat is overdue by `limit_seconds`, the watchdog's thread
inspects the stack of the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from types import FrameType

from taskapp_kit.logs import LogMessage

log = logging.getLogger("taskapp_kit.serve")

BEAT_SECONDS = 0.1
LIMIT_SECONDS = 0.25
"""The loop counts as blocked when a heartbeat is late by more than this many seconds."""
QUIET_SECONDS = 10.0
"""Minimum time between two warnings, in seconds."""
UNSEEN = "(the blocking code ended before its stack could be read, or held the interpreter's lock)"
IDLE = ("selectors", "asyncio.runners", "asyncio.base_events", "uvicorn.server")
"""The modules that are at the top of the loop's stack while the loop is idle."""
LINES = 6
"""Number of stack frames in a warning, starting with the innermost frame."""


class Watchdog:
    """Watches the running event loop between `start` and `stop`, both of which must be called on this loop.

    Attributes:
        lag_seconds: Delay of the last heartbeat.
        blocked: Number of heartbeats that were late by more than `limit_seconds`.
        blocked_seconds: Total delay of these heartbeats.
    """

    def __init__(self, *, limit_seconds: float = LIMIT_SECONDS, quiet_seconds: float = QUIET_SECONDS) -> None:
        self.limit_seconds = limit_seconds
        self.quiet_seconds = quiet_seconds
        self.lag_seconds = 0.0
        self.blocked = 0
        self.blocked_seconds = 0.0
        self._due = 0.0
        self._reported_due = 0.0  # due time of the last heartbeat that was reported
        self._quiet_until = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._timer: asyncio.TimerHandle | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start watching the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._ended.clear()
        self._schedule()
        # a thread, because a blocked loop cannot report on itself
        self._thread = threading.Thread(target=self._watch, name="taskapp-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching. Does nothing if the watchdog was not started."""
        self._ended.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            self._thread.join()

    def _schedule(self) -> None:
        assert self._loop is not None, "start() sets the loop before the first heartbeat"
        # the loop writes this float and the thread reads it, which needs no lock
        self._due = time.monotonic() + BEAT_SECONDS
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        """Record a heartbeat. Runs on the event loop."""
        due = self._due
        lag = self.lag_seconds = max(0.0, time.monotonic() - due)
        if lag > self.limit_seconds:
            self.blocked += 1
            self.blocked_seconds += lag
            # the thread has already reported it; this line adds the duration
            if due == self._reported_due:
                log.warning(LogMessage("event loop runs again", blocked_seconds=round(lag, 3)))
            elif time.monotonic() >= self._quiet_until:
                self._quiet_until = time.monotonic() + self.quiet_seconds
                log.warning(LogMessage("event loop blocked", lag_seconds=round(lag, 3), culprit=UNSEEN))
        self._schedule()

    def _watch(self) -> None:
        """Report overdue heartbeats. Runs in the watchdog's thread."""
        while True:
            overdue = self._due + self.limit_seconds
            if self._ended.wait(max(0.0, overdue - time.monotonic())):
                return
            due = self._due
            now = time.monotonic()
            if now < due + self.limit_seconds:
                continue  # the heartbeat has arrived
            if now >= self._quiet_until:
                self._quiet_until = now + self.quiet_seconds
                self._reported_due = due
                self._report(now - due)
            while self._due == due:  # report each blockage once
                if self._ended.wait(BEAT_SECONDS):
                    return

    def _report(self, lag: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        culprit = UNSEEN if frame is None else _stack(frame)
        # an idle loop is late when other threads hold the GIL or the machine is busy
        if frame is not None and frame.f_globals.get("__name__") in IDLE:
            culprit = f"(the loop is idle: other threads or processes are busy) {culprit}"
        log.warning(LogMessage("event loop blocked", lag_seconds=round(lag, 3), culprit=culprit))


def _stack(frame: FrameType) -> str:
    """Return the stack as `file:line function < file:line function < …`, starting with the innermost frame."""
    stack = traceback.StackSummary.extract(traceback.walk_stack(frame), limit=LINES, lookup_lines=False)
    return " < ".join(f"{entry.filename}:{entry.lineno} {entry.name}" for entry in stack)
