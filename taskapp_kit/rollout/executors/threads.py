"""Threads for environments. All calls on one `PinnedThread` use one thread, and the event loop never runs author's code.

A thread cannot be killed. A job that exceeds its deadline by `grace_seconds` is abandoned: the caller gets ThreadHung, and
the thread is counted in `hung` and only returns to the pool if the job ever ends.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any, Literal, TypeVar

T = TypeVar("T")

Stop = Callable[[Literal["timeout", "cancelled"]], None]
"""Asks a job to end. The argument is the reason. Called on the event loop."""

THREADS = 64
"""The default number of rollouts that run at once in the threads of one process."""
GRACE_SECONDS = 1.0
"""How long a job may take to end after a stop request, before its thread is abandoned."""


class ThreadHung(Exception):
    """The job did not stop when requested, because the environment's code blocks its thread."""


class NoFreeThread(ThreadHung):
    """No thread became free before the deadline, so the job did not start."""


class ThreadBlocked(ThreadHung):
    """The job did not start, because a job of another rollout blocks the shared thread."""


class Job:
    """One call in a thread. began: the monotonic time of the start, or 0 before the start. seconds: the duration of the call.

    reports: whether the thread reports the job's end to the event loop.
    """

    __slots__ = (
        "abandoned", "began", "counted", "done", "error", "function", "future", "loop", "overdue", "reports", "result",
        "seconds",
    )  # fmt: skip

    def __init__(self, function: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self.function: Callable[[], Any] | None = function
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None
        self.began = self.seconds = 0.0
        self.done = False
        self.abandoned = False
        self.counted = False
        self.overdue = False
        self.reports = True

    def run(self) -> None:
        """Call the function in the thread, then drop it, because it is part of a reference cycle with this job."""
        function, self.function = self.function, None
        assert function is not None, "a job runs once"
        try:
            self.result = function()
        except BaseException as error:
            self.error = error
        self.seconds = time.monotonic() - self.began

    def settle(self) -> None:
        """Set the outcome if the caller is still waiting. Called on the event loop."""
        if self.future.done():
            return
        # a future rejects StopIteration, and other BaseExceptions would end the event loop
        if isinstance(self.error, Exception) and not isinstance(self.error, StopIteration):
            self.future.set_exception(self.error)
        elif self.error is not None:  # sys.exit() in a thread must end neither the loop nor the server
            failure = RuntimeError(f"the job raised {type(self.error).__name__}")
            failure.__cause__ = self.error
            self.future.set_exception(failure)
        else:
            self.future.set_result(self.result)


class Batch:
    """Jobs that a thread runs in order while the event loop's thread waits for the last job."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._ended = threading.Lock()
        self._ended.acquire()
        for job in jobs:
            job.reports = False

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)

    def end(self) -> None:
        """Wake the event loop's thread. Called in the worker thread."""
        self._ended.release()

    def wait(self, seconds: float) -> None:
        """Block the event loop until the jobs end, for at most `seconds`. Jobs that end later are reported normally."""
        if not self._ended.acquire(timeout=seconds):
            for job in self._jobs:
                job.reports = (
                    True  # the thread reads this after it has set `done`, so one of the two sees the other's change
                )


class _Thread:
    """One worker thread with its own queue. running: the current job."""

    def __init__(self, number: int, returned: Callable[[_Thread, Job], None]) -> None:
        self.inbox: queue.SimpleQueue[Job | Batch | None] = queue.SimpleQueue()
        self.running: Job | None = None
        self._returned = returned
        # a daemon, because a hung thread cannot be killed and must not keep the process alive
        self.thread = threading.Thread(target=self._work, name=f"taskapp-pinned-{number}", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        while (work := self.inbox.get()) is not None:
            if isinstance(work, Batch):
                for job in work:
                    self._run(job)
                work.end()
                del job
            else:
                self._run(work)
            del work  # an idle thread must not keep a rollout in memory

    def _run(self, job: Job) -> None:
        # before `running` is set, because its readers compute the job's duration from `began`
        job.began = time.monotonic()
        self.running = job
        job.run()
        self.running = None
        job.done = True
        if job.reports:
            self._returned(self, job)


class PinnedThreads:
    """A pool of at most `size` threads, which are created on demand and reused. Use it on one event loop.

    `run` runs one job. `open` returns a pinned thread, whose calls all run in that thread.
    """

    def __init__(self, size: int = THREADS, *, grace_seconds: float = GRACE_SECONDS) -> None:
        self.size = size
        self.grace_seconds = grace_seconds
        self._idle: deque[_Thread] = deque()
        self._free = asyncio.Semaphore(size)
        self._made = 0
        self._lock = threading.Lock()
        self._hung = 0
        self._closed = False
        self._jobs: set[Job] = set()
        self._news = asyncio.Event()

    @property
    def hung(self) -> int:
        """The number of abandoned threads that are still blocked."""
        return self._hung

    async def run(self, function: Callable[[], T], *, seconds: float, stop: Stop) -> T:
        """Run the job in a thread and return its result. After `seconds`, call `stop("timeout")`.

        The time limit includes waiting for a thread. If the caller is cancelled, `stop("cancelled")` is called, and the
        thread returns to the pool when the job ends. Raises NoFreeThread if no thread becomes free, and ThreadHung if the
        job does not end after `stop`.
        """
        # usually a thread is free, so no waiting time has to be subtracted
        if self._free.locked():
            began = time.monotonic()
            pinned_thread = await self.open(seconds=seconds)
            seconds -= time.monotonic() - began
        else:
            pinned_thread = await self.open()
        try:
            return await pinned_thread.call(function, seconds=seconds, stop=stop)
        finally:
            pinned_thread.close()

    async def open(self, *, seconds: float | None = None) -> PinnedThread:
        """Return a pinned thread for the caller. Raises NoFreeThread if none becomes free within `seconds`."""
        if self._free.locked():
            try:
                async with asyncio.timeout(seconds):
                    await self._free.acquire()
            except TimeoutError:
                raise NoFreeThread(f"none of the {self.size} threads became free within {seconds:g} s") from None
        else:
            await self._free.acquire()
        with self._lock:
            thread = self._idle.pop() if self._idle else None
            if thread is None:
                self._made += 1
        if thread is None:
            thread = _Thread(self._made, self._job_ended)
        return PinnedThread(self, thread)

    async def quiet(self, seconds: float) -> None:
        """Wait at most `seconds` for jobs without a caller, such as the closing of an environment."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(not job.counted for job in self._jobs):
                    self._news.clear()
                    await self._news.wait()

    def close(self) -> None:
        """End idle threads. A busy thread ends after its job."""
        with self._lock:
            self._closed = True
            idle, self._idle = list(self._idle), deque()
        for thread in idle:
            thread.inbox.put(None)

    def _job_ended(self, thread: _Thread, job: Job) -> None:
        """Report the end of a job to the event loop. Called in the worker thread."""
        try:
            job.loop.call_soon_threadsafe(self._settle, thread, job)
        except RuntimeError:  # the loop is closed, so no caller is waiting
            thread.inbox.put(None)

    def _settle(self, thread: _Thread, job: Job) -> None:
        """Set the job's outcome and release its thread. Called on the event loop."""
        self._jobs.discard(job)
        self._news.set()
        job.settle()
        if job.abandoned:
            self._hung -= job.counted
            self._release(thread)

    def _release(self, thread: _Thread) -> None:
        with self._lock:
            if self._closed:
                thread.inbox.put(None)
            else:
                self._idle.append(thread)
        self._free.release()

    def _give_up(self, job: Job) -> None:
        """Abandon a job whose caller has left. The job's thread stays occupied until the job ends.

        If the caller was cancelled, the job counts as hung only after the grace period.
        """
        # The thread still runs the author's code, so it is not returned to the pool before that code ends.
        job.abandoned = True
        if job.overdue:
            self._count(job)
        else:
            job.loop.call_later(self.grace_seconds, self._count, job)

    def _count(self, job: Job) -> None:
        if not job.done:
            job.counted = True
            self._hung += 1
            self._news.set()


class PinnedThread:
    """A thread that is reserved from the pool until `close`.

    Each reservation has a separate `contextvars` context, which is empty at first, and a separate current event loop. A copy of
    the caller's context would share objects that change in place, such as decimal's context.
    """

    def __init__(self, pinned_threads: PinnedThreads, thread: _Thread) -> None:
        self._pinned_threads = pinned_threads
        self.thread = thread
        self.job: Job | None = None
        self.is_open = True
        # All calls of an instance run in one thread, so authors may use thread-bound libraries. The context isolates
        # the settings of one rollout (decimal's precision, a current loop) from the next rollout in the thread.
        self._context = Context()
        self._event_loop: asyncio.AbstractEventLoop | None = None

    async def call(self, function: Callable[[], T], *, seconds: float, stop: Stop) -> T:
        """Run one job in this thread and return its result. See `PinnedThreads.run`."""
        job = Job(partial(self._isolated, function), asyncio.get_running_loop())
        self.put(job)
        result: T = await self.outcome(job, seconds=seconds, stop=stop)
        return result

    async def outcome(self, job: Job, *, seconds: float, stop: Stop) -> Any:
        """Wait for a job that has begun, and return its result. See `PinnedThreads.run`."""
        loop = job.loop
        timer = loop.call_later(max(0.0, seconds), self._overdue, job, stop)
        try:
            return await job.future
        except asyncio.CancelledError:
            stop("cancelled")
            raise
        finally:
            timer.cancel()

    def post(self, function: Callable[[], object]) -> None:
        """Queue another job without waiting for it. After `close`, do nothing."""
        if not self.is_open:
            return
        job = Job(partial(self._isolated, function), asyncio.get_running_loop())
        # asyncio would log an outcome that is never retrieved
        job.future.cancel()
        self.put(job)

    def _isolated(self, function: Callable[[], T]) -> T:
        """Run a job with this reservation's context and event loop. Called in the thread."""
        asyncio.set_event_loop(self._event_loop)
        try:
            return self._context.run(function)
        finally:
            self._event_loop = _current_event_loop()

    def put(self, job: Job) -> None:
        """Queue a job."""
        self.take(job)
        self.thread.inbox.put(job)

    def take(self, job: Job) -> None:
        """Register a job as the latest job."""
        self.job = job
        self._pinned_threads._jobs.add(job)

    def _overdue(self, job: Job, stop: Stop) -> None:
        stop("timeout")
        job.loop.call_later(self._pinned_threads.grace_seconds, self._stuck, job)

    def _stuck(self, job: Job) -> None:
        if job.done or job.future.done():
            return
        # the job never ran, so another rollout's environment is to blame
        if not job.began:
            job.future.set_exception(ThreadBlocked("another rollout's call blocks the thread"))
            return
        job.overdue = True
        job.future.set_exception(ThreadHung("the environment's code did not return"))

    def close(self) -> None:
        """Return the thread to the pool. A busy thread returns when its job ends."""
        if not self.is_open:
            return
        self.is_open = False
        job = self.job
        if job is not None and not job.done:
            self._pinned_threads._give_up(job)
        else:
            self._pinned_threads._release(self.thread)


def _current_event_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_event_loop()
    except RuntimeError:  # this thread has no event loop
        return None
