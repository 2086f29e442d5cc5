"""A job as the parent follows it: the frames of its child, its time limits, its outcome.

All of it runs on the event loop. Frames are handled one after the other; while a slow handler is awaited, a frame to the
child holds the job back, so that it cannot fill this process's memory.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

from taskapp_kit.rollout.executors.protocol import Frame, StopReason
from taskapp_kit.system.child import signal_name

FrameHandler = Callable[[Frame, bytes], "Frame | Awaitable[Frame | None] | None"]

# Beyond these the child is held back: a flood of events may not fill this process's memory.
_HOLD_FRAMES = 256
_HOLD_BYTES = 1024 * 1024
_EOF_SECONDS = 1.0

KilledFor = Literal["step", "deadline", "cancelled", "frame", "closing"]


class JobLost(Exception):
    """A job did not end regularly. `reason` is a sentence without its full stop."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class WorkerDied(JobLost):
    """The child died while it ran the job.

    exit_code: as the system gives it, negative for a signal. signal_name: e.g. "SIGSEGV". killed_for: why the parent killed
    it; None when it died by itself.
    """

    def __init__(self, reason: str, exit_code: int | None = None, killed_for: KilledFor | None = None) -> None:
        super().__init__(reason)
        self.exit_code = exit_code
        self.killed_for = killed_for

    @property
    def signal_name(self) -> str | None:
        """The signal that killed it; None when it exited."""
        return signal_name(self.exit_code)


class JobHung(JobLost):
    """The job did not end when asked, in a shared child, and was abandoned. `hung_in`: "step" or "deadline"."""

    def __init__(self, reason: str, hung_in: Literal["step", "deadline"]) -> None:
        super().__init__(reason)
        self.hung_in = hung_in


class JobRaised(JobLost):
    """The child's handler raised. `frame` has `error` (the type), `message`, `traceback`: for the log, not the response."""

    def __init__(self, frame: Frame) -> None:
        super().__init__(f"the job raised {frame.get('error')}")
        self.frame = frame


class NeverBegan(JobLost):
    """No child was free until the job's deadline, or the pool was closed before."""


class StartFailed(JobLost):
    """A child could not be started; the reason includes its own message."""


Outcome = tuple[Frame, bytes] | BaseException
"""The outcome of a job: its last frame and blob, or the error for its caller."""


class Child(Protocol):
    """The part of a child process that a job uses."""

    def send(self, message: Frame) -> None:
        """Send a frame if the child is alive."""
        ...

    def ended(self, running: Running) -> None:
        """Handle the end of a job in the child."""
        ...

    def overdue(self, running: Running, what: Literal["step", "deadline", "cancelled"], reason: str) -> None:
        """Handle a job that does not end."""
        ...

    def step_began(self, cell: int) -> int:
        """Return when the current step of that cell began, in monotonic nanoseconds; 0 between steps."""
        ...


class Running:
    """A job from `ProcessPool.run` to its end. `future` is the outcome."""

    __slots__ = (
        "asked", "blob", "cell", "child", "deadline", "frame", "future", "grace_seconds", "held", "loop", "number",
        "on_frame", "outcome", "over", "queued", "queued_bytes", "seconds", "step_seconds", "step_timer", "stop_timer",
        "stopping", "waiting",
    )  # fmt: skip
    _numbers = itertools.count(1)

    def __init__(
        self,
        frame: Frame,
        blob: bytes,
        *,
        seconds: float,
        step_seconds: float | None,
        grace_seconds: float,
        on_frame: FrameHandler,
    ) -> None:
        self.number = next(Running._numbers)
        self.frame = frame
        self.blob = blob
        self.seconds = seconds
        self.step_seconds = step_seconds
        self.grace_seconds = grace_seconds
        self.on_frame = on_frame
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[tuple[Frame, bytes]] = self.loop.create_future()
        self.child: Child | None = None
        self.cell = 0
        self.deadline: asyncio.TimerHandle | None = None
        self.stop_timer: asyncio.TimerHandle | None = None
        self.step_timer: asyncio.TimerHandle | None = None
        self.stopping: StopReason | None = None
        self.over = False
        self.outcome: Outcome | None = None
        self.asked = False
        self.waiting: asyncio.Future[Frame | None] | None = None
        self.queued: deque[tuple[Frame, bytes, int]] = deque()
        self.queued_bytes = 0
        self.held = False

    @property
    def begun(self) -> bool:
        """Whether a child received it."""
        return self.child is not None or self.outcome is not None

    def end(self, outcome: Outcome, *, at_once: bool = False) -> None:
        """Set the outcome. The caller gets it once all earlier frames were handled.

        at_once: frames that are not handled yet are dropped.
        """
        if self.outcome is None:
            self.outcome = outcome
        self.child = None
        # Otherwise after the frames that are queued: a listener gets all that was sent before a crash.
        if at_once or self.waiting is None:
            self._settle()

    def _settle(self) -> None:
        """Give the caller the outcome; drop later frames, and cancel the handler that is awaited."""
        self.over = True
        if not self.future.done() and self.outcome is not None:
            if isinstance(self.outcome, BaseException):
                self.future.set_exception(self.outcome)
            else:
                self.future.set_result(self.outcome)
        self.queued.clear()
        for timer in (self.deadline, self.stop_timer, self.step_timer):
            if timer is not None:
                timer.cancel()
        if self.waiting is not None:
            self.waiting.cancel()

    # -- frames of the child ---------------------------------------------------------------------------------------

    def take(self, message: Frame, blob: bytes, size: int) -> None:
        """Handle one frame, now or after the earlier frame that is awaited."""
        if "done" in message or "raised" in message:
            child = self.child
            self.end((message["done"], blob) if "done" in message else JobRaised(message["raised"]))
            if child is not None:
                child.ended(self)
            return
        if self.waiting is None:
            self._handle(message, blob)
            return
        self.queued.append((message, blob, size))
        self.queued_bytes += size
        if not self.held and (len(self.queued) >= _HOLD_FRAMES or self.queued_bytes >= _HOLD_BYTES):
            self._hold(True)

    def _hold(self, hold: bool) -> None:
        self.held = hold
        if self.child is not None:
            self.child.send({"job": self.number, "hold": hold})

    def _handle(self, message: Frame, blob: bytes) -> None:
        self.asked = "ask" in message
        if self.future.done():  # the caller is gone
            return
        try:
            result = self.on_frame(message["ask"] if self.asked else message["report"], blob)
        except Exception as error:
            self._handler_failed(error)
            return
        if result is None or isinstance(result, dict):
            self._reply(result)
        else:
            self.waiting = asyncio.ensure_future(result)
            self.waiting.add_done_callback(self._awaited)

    def _reply(self, frame: Frame | None) -> None:
        if self.asked and self.child is not None:
            try:
                self.child.send({"job": self.number, "reply": frame or {}})
            except (TypeError, ValueError) as error:
                self._handler_failed(error)

    def _awaited(self, future: asyncio.Future[Frame | None]) -> None:
        self.waiting = None
        error = None if future.cancelled() else future.exception()  # always retrieved, or asyncio logs it
        if self.over:
            return
        if future.cancelled():
            if self.stopping is None:
                self._handler_failed(JobLost("a request of the job was cancelled"))
        elif error is not None:
            self._handler_failed(error)
        else:
            self._reply(future.result())
        while self.queued and self.waiting is None:
            message, blob, size = self.queued.popleft()
            self.queued_bytes -= size
            if self.held and len(self.queued) < _HOLD_FRAMES // 2 and self.queued_bytes < _HOLD_BYTES // 2:
                self._hold(False)
            self._handle(message, blob)
        if self.outcome is not None and self.waiting is None:
            self._settle()

    def _handler_failed(self, error: BaseException) -> None:
        """End the job after `on_frame` raised: the caller gets the error, the child is asked to stop."""
        if not self.future.done():
            self.future.set_exception(error)
        self.stop("cancelled")

    # -- the end from outside --------------------------------------------------------------------------------------

    def stop(self, reason: StopReason) -> None:
        """Ask the child to end the job; after the grace period, kill an exclusive child, or abandon the job in a shared one."""
        if self.outcome is not None:  # the child is done: only a handler is slow
            self._settle()
        if self.over or self.stopping is not None or self.child is None:
            return
        # Once: a deadline and a cancellation may come together, and the grace period begins with the first.
        self.stopping = reason
        self.child.send({"job": self.number, "stop": reason})
        self.stop_timer = self.loop.call_later(self.grace_seconds, self._did_not_stop)
        if self.waiting is not None:
            self.waiting.cancel()

    def _did_not_stop(self) -> None:
        child = self.child
        if self.outcome is not None:
            self._settle()
        if self.over or child is None:
            return
        slow = f"the job did not end within {self.grace_seconds:g} s after"
        if self.stopping == "timeout":
            child.overdue(self, "deadline", f"{slow} its deadline of {self.seconds:g} s")
        else:
            child.overdue(self, "cancelled", f"{slow} being cancelled")

    def watch_step(self) -> None:
        """Check the age of the current step, and schedule the next check.

        A step that begins after this check is found by the next one, `step_seconds` later, before it is too old.
        """
        child, limit = self.child, self.step_seconds
        if self.over or child is None or limit is None:
            return
        began = child.step_began(self.cell)
        age = (time.monotonic_ns() - began) / 1e9 if began else 0.0
        # The clock is in shared memory, so a child that hangs in C, and answers nothing, is noticed as well.
        if age >= limit:
            child.overdue(self, "step", f"a step took longer than {limit:g} s")
        else:
            self.step_timer = self.loop.call_later(limit - age + 0.001, self.watch_step)
