"""Says when the event loop stands still, and who holds it up: while it does, nobody is answered.

The loop beats every `BEAT_SECONDS`; a thread wakes when a beat is overdue by `limit_seconds` and looks what the loop's
thread is doing just then.
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
"""The loop is told of when it is later than this."""
QUIET_SECONDS = 10.0
"""One culprit is told in this time at most."""
UNSEEN = "(over before it could be looked at, or it held the interpreter's lock)"
IDLE = ("selectors", "asyncio.runners", "asyncio.base_events", "uvicorn.server")
"""Modules in which a loop's thread is when nothing runs on it."""
LINES = 6
"""So many places of the culprit's stack, the innermost first."""


class Watchdog:
    """Watches the running event loop from `start` to `stop`; both are called on it.

    lag_seconds: how late the last beat was. blocked: how often the loop was later than `limit_seconds`. blocked_seconds:
    how long in all.
    """

    def __init__(self, *, limit_seconds: float = LIMIT_SECONDS, quiet_seconds: float = QUIET_SECONDS) -> None:
        self.limit_seconds = limit_seconds
        self.quiet_seconds = quiet_seconds
        self.lag_seconds = 0.0
        self.blocked = 0
        self.blocked_seconds = 0.0
        self._due = 0.0
        self._told_due = 0.0  # of the beat whose lateness was told last
        self._quiet_until = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._timer: asyncio.TimerHandle | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins to watch the loop that runs here."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._ended.clear()
        self._schedule()
        self._thread = threading.Thread(target=self._watch, name="taskapp-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the watch; may be called without `start`."""
        self._ended.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            self._thread.join()

    def _schedule(self) -> None:
        assert self._loop is not None, "only a started watchdog beats"
        self._due = time.monotonic() + BEAT_SECONDS
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        """On the loop."""
        due = self._due
        lag = self.lag_seconds = max(0.0, time.monotonic() - due)
        if lag > self.limit_seconds:
            self.blocked += 1
            self.blocked_seconds += lag
            if due == self._told_due:
                log.warning(LogMessage("event loop runs again", blocked_seconds=round(lag, 3)))
            elif time.monotonic() >= self._quiet_until:
                self._quiet_until = time.monotonic() + self.quiet_seconds
                log.warning(LogMessage("event loop blocked", lag_seconds=round(lag, 3), culprit=UNSEEN))
        self._schedule()

    def _watch(self) -> None:
        """In the watchdog's thread."""
        while True:
            overdue = self._due + self.limit_seconds
            if self._ended.wait(max(0.0, overdue - time.monotonic())):
                return
            due = self._due
            now = time.monotonic()
            if now < due + self.limit_seconds:
                continue  # it beat meanwhile
            if now >= self._quiet_until:
                self._quiet_until = now + self.quiet_seconds
                self._told_due = due
                self._report(now - due)
            while self._due == due:  # one blockade is told once
                if self._ended.wait(BEAT_SECONDS):
                    return

    def _report(self, lag: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        culprit = UNSEEN if frame is None else _places(frame)
        if frame is not None and frame.f_globals.get("__name__") in IDLE:
            culprit = f"(nothing on the loop: busy threads or processes beside it) {culprit}"
        log.warning(LogMessage("event loop blocked", lag_seconds=round(lag, 3), culprit=culprit))


def _places(frame: FrameType) -> str:
    """Where the thread is, the innermost place first: `file:line function < file:line function < …`. No values."""
    stack = traceback.StackSummary.extract(traceback.walk_stack(frame), limit=LINES, lookup_lines=False)
    return " < ".join(f"{place.filename}:{place.lineno} {place.name}" for place in stack)
