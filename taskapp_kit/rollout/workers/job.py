"""A job as the front follows it: what its child says of it, when it must stop, how it ended.

Everything here happens on the event loop. Each frame is handled before the next; a job whose listener takes its time is
held by a frame to the child, so that it cannot fill this process's memory.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

from taskapp_kit.rollout.workers.protocol import Frame, StopReason

Tell = Callable[[Frame, bytes], "Frame | Awaitable[Frame | None] | None"]

_HOLD_FRAMES = 256
_HOLD_BYTES = 1024 * 1024
_EOF_SECONDS = 1.0

KilledFor = Literal["step", "deadline", "cancelled", "frame", "closing"]


class JobLost(Exception):
    """A job came to no end of its own. `reason` is a sentence without its full stop."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class WorkerDied(JobLost):
    """The child died while the job ran in it.

    exit_code: as the system gives it, negative for a signal. signal_name: e.g. "SIGSEGV". killed_for: why we killed it;
    None when it died by itself.
    """

    def __init__(self, reason: str, exit_code: int | None = None, killed_for: KilledFor | None = None) -> None:
        super().__init__(reason)
        self.exit_code = exit_code
        self.killed_for = killed_for

    @property
    def signal_name(self) -> str | None:
        """The signal it died by; None when it exited."""
        return _signal_name(self.exit_code)


class JobHung(JobLost):
    """The job did not end when asked, in a child that others use: it was given up. `hung_in`: "step" or "deadline"."""

    def __init__(self, reason: str, hung_in: Literal["step", "deadline"]) -> None:
        super().__init__(reason)
        self.hung_in = hung_in


class JobRaised(JobLost):
    """The child's handler raised. `frame` has `error` (the type), `message`, `traceback`: for the log, not the wire."""

    def __init__(self, frame: Frame) -> None:
        super().__init__(f"the job raised {frame.get('error')}")
        self.frame = frame


class NeverBegan(JobLost):
    """Every place was taken until the job's deadline, or the pool closed before one came free."""


class StartFailed(JobLost):
    """A child could not be started; the reason holds what it said itself."""


def _signal_name(exit_code: int | None) -> str | None:
    if exit_code is None or exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


def death(exit_code: int) -> str:
    """How it died, in words."""
    name = _signal_name(exit_code)
    if name is None:
        return f"exited {exit_code}"
    if name == "SIGKILL":
        return "killed by SIGKILL from outside, as the kernel does when memory runs out"
    return f"{(signal.strsignal(-exit_code) or name).lower()} ({name})"


Outcome = tuple[Frame, bytes] | BaseException
"""What a job came to: its last frame and blob, or the error that its caller gets."""


class Child(Protocol):
    """What a job needs of the process that it runs in."""

    def send(self, message: Frame) -> None:
        """A frame to the child, when it still lives."""
        ...

    def ended(self, running: Running) -> None:
        """The child is through with this job."""
        ...

    def overdue(self, running: Running, what: Literal["step", "deadline", "cancelled"], reason: str) -> None:
        """The job will not end."""
        ...

    def step_began(self, cell: int) -> int:
        """When the step under way there began, in monotonic nanoseconds; 0 between steps."""
        ...


class Running:
    """A job on its way, from `Processes.run` to its end. `future` is the outcome."""

    __slots__ = (
        "asked", "blob", "cell", "child", "deadline", "frame", "future", "grace_seconds", "held", "loop", "number",
        "outcome", "over", "queued", "queued_bytes", "seconds", "step_seconds", "step_timer", "stop_timer", "stopping",
        "tell", "waiting",
    )  # fmt: skip
    _numbers = itertools.count(1)

    def __init__(
        self, frame: Frame, blob: bytes, *, seconds: float, step_seconds: float | None, grace_seconds: float, tell: Tell
    ) -> None:
        self.number = next(Running._numbers)
        self.frame = frame
        self.blob = blob
        self.seconds = seconds
        self.step_seconds = step_seconds
        self.grace_seconds = grace_seconds
        self.tell = tell
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
        """A child was given it."""
        return self.child is not None or self.outcome is not None

    def end(self, outcome: Outcome, *, at_once: bool = False) -> None:
        """No child runs it any more. The caller hears so once all that was told before has been listened to.

        at_once: what still waits to be listened to is dropped.
        """
        if self.outcome is None:
            self.outcome = outcome
        self.child = None
        if at_once or self.waiting is None:
            self._settle()

    def _settle(self) -> None:
        """The caller's wait ends; nothing is told any more, and what was being awaited is cancelled."""
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

    # -- what the child says ---------------------------------------------------------------------------------------

    def take(self, message: Frame, blob: bytes, size: int) -> None:
        """One frame of this job, handled now or, while an earlier one is awaited, in its turn."""
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
            result = self.tell(message["ask"] if self.asked else message["tell"], blob)
        except Exception as error:
            self._listener_failed(error)
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
                self._listener_failed(error)

    def _awaited(self, future: asyncio.Future[Frame | None]) -> None:
        self.waiting = None
        error = None if future.cancelled() else future.exception()  # looked at in any case, or asyncio complains
        if self.over:
            return
        if future.cancelled():
            if self.stopping is None:
                self._listener_failed(JobLost("what the job asked for was cancelled"))
        elif error is not None:
            self._listener_failed(error)
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

    def _listener_failed(self, error: BaseException) -> None:
        """`tell` raised: the caller gets that, the child is asked to end the job."""
        if not self.future.done():
            self.future.set_exception(error)
        self.stop("cancelled")

    # -- the end from outside --------------------------------------------------------------------------------------

    def stop(self, reason: StopReason) -> None:
        """Asks the child to end the job; after the grace it is killed or, when others use it, the job given up."""
        if self.outcome is not None:  # the child is through: only a listener is slow
            self._settle()
        if self.over or self.stopping is not None or self.child is None:
            return
        self.stopping = reason
        self.child.send({"job": self.number, "stop": reason})
        self.stop_timer = self.loop.call_later(self.grace_seconds, self._would_not_stop)
        if self.waiting is not None:
            self.waiting.cancel()

    def _would_not_stop(self) -> None:
        child = self.child
        if self.outcome is not None:
            self._settle()
        if self.over or child is None:
            return
        slow = f"the job did not end within {self.grace_seconds:g} s of"
        if self.stopping == "timeout":
            child.overdue(self, "deadline", f"{slow} its deadline of {self.seconds:g} s")
        else:
            child.overdue(self, "cancelled", f"{slow} being cancelled")

    def watch_step(self) -> None:
        """Looks whether the step under way is too old, and sets the time to look again.

        A step that begins after this look is seen at the next, `step_seconds` later, before it is too old.
        """
        child, limit = self.child, self.step_seconds
        if self.over or child is None or limit is None:
            return
        began = child.step_began(self.cell)
        age = (time.monotonic_ns() - began) / 1e9 if began else 0.0
        if age >= limit:
            child.overdue(self, "step", f"step took longer than {limit:g} s")
        else:
            self.step_timer = self.loop.call_later(limit - age + 0.001, self.watch_step)
