"""A job on the parent's side: the child's frames, the time limits and the outcome.

All of this code runs on the event loop. Frames are handled in order. While a slow handler is awaited, a `hold` frame pauses
the job in the child, so that unhandled frames cannot fill the memory of this process.
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

# Above these limits the child is paused, so that a flood of events cannot fill this process's memory.
_HOLD_FRAMES = 256
_HOLD_BYTES = 1024 * 1024
_EOF_SECONDS = 1.0

KilledFor = Literal["step", "deadline", "cancelled", "frame", "closing"]


class JobLost(Exception):
    """A job did not end normally. `reason` is a sentence without a full stop."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class WorkerDied(JobLost):
    """The child died while it ran the job.

    exit_code: the process's return code, negative for a signal. signal_name: the signal, such as "SIGSEGV", or None if it exited.
    killed_for: why the parent killed the child, or None if the parent did not kill it.
    """

    def __init__(self, reason: str, exit_code: int | None = None, killed_for: KilledFor | None = None) -> None:
        super().__init__(reason)
        self.exit_code = exit_code
        self.killed_for = killed_for

    @property
    def signal_name(self) -> str | None:
        """The name of the signal that killed the child, or None if it exited."""
        return signal_name(self.exit_code)


class JobHung(JobLost):
    """A job in a shared child did not stop when requested, and was abandoned.

    `hung_in`: the limit that the job exceeded, "step" or "deadline".
    """

    def __init__(self, reason: str, hung_in: Literal["step", "deadline"]) -> None:
        super().__init__(reason)
        self.hung_in = hung_in


class JobRaised(JobLost):
    """The child's handler raised. `frame` has `error` (the type), `message` and `traceback`, for the log only."""

    def __init__(self, frame: Frame) -> None:
        super().__init__(f"the job raised {frame.get('error')}")
        self.frame = frame


class NeverBegan(JobLost):
    """No child became free before the job's deadline, or the pool was closed first."""


class StartFailed(JobLost):
    """A child could not be started. The reason includes the child's error message, if any."""


Outcome = tuple[Frame, bytes] | BaseException
"""The outcome of a job: the last frame and blob, or the error for the caller."""


class Child(Protocol):
    """The methods of a child process that a job uses."""

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
        """Return when the current step of the job that uses this cell began, in monotonic nanoseconds, or 0 between steps."""
        ...


class Running:
    """A job, from the call of `ProcessPool.run` until its end. `future` contains the outcome."""

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
        """Whether a child has received the job."""
        return self.child is not None or self.outcome is not None

    def end(self, outcome: Outcome, *, at_once: bool = False) -> None:
        """Set the outcome. The caller gets the outcome after all earlier frames were handled.

        at_once: whether to drop the frames that have not been handled yet.
        """
        if self.outcome is None:
            self.outcome = outcome
        self.child = None
        # Otherwise settle after the queued frames, so that a listener gets everything sent before a crash.
        if at_once or self.waiting is None:
            self._settle()

    def _settle(self) -> None:
        """Pass the outcome to the caller, drop later frames, and cancel a handler that is still running."""
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
        """Handle one frame, after the handler of the previous frame has ended."""
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
        # always retrieved, because asyncio logs exceptions that are never retrieved
        error = None if future.cancelled() else future.exception()
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
        """End the job after `on_frame` raised. The caller gets the error, and the child is asked to stop."""
        if not self.future.done():
            self.future.set_exception(error)
        self.stop("cancelled")

    # -- the end from outside --------------------------------------------------------------------------------------

    def stop(self, reason: StopReason) -> None:
        """Ask the child to end the job. After the grace period, kill an exclusive child, or abandon a shared child's job."""
        if self.outcome is not None:  # the child has ended the job, and only a handler is slow
            self._settle()
        if self.over or self.stopping is not None or self.child is None:
            return
        # only once, because a deadline and a cancellation may coincide, and the grace period begins with the first
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
        """Check how long the current step has been running, and schedule the next check.

        The next check follows `step_seconds` later, so a step that begins after this check is also checked in time.
        """
        child, limit = self.child, self.step_seconds
        if self.over or child is None or limit is None:
            return
        began = child.step_began(self.cell)
        age = (time.monotonic_ns() - began) / 1e9 if began else 0.0
        # The clock is in shared memory, so this also detects a child that hangs in C code and sends nothing.
        if age >= limit:
            child.overdue(self, "step", f"a step took longer than {limit:g} s")
        else:
            self.step_timer = self.loop.call_later(limit - age + 0.001, self.watch_step)
