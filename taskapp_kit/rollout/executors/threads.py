"""Threads for environments. All calls on one `PinnedThread` use one thread; the event loop never runs author's code.

A thread cannot be killed. A job that exceeds its deadline by `grace_seconds` is abandoned: its caller gets ThreadHung, its
thread is quarantined (counted in `hung`) and returns only if the job ever ends.
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
"""Asks a job to end, with the reason. Called on the event loop."""

THREADS = 64
"""How many rollouts run at once in the threads of one process, unless the service's settings say otherwise."""
GRACE_SECONDS = 1.0
"""How long a job may take to notice that it should stop, before its thread is abandoned."""


class ThreadHung(Exception):
    """The job did not stop when asked: the environment's code blocks its thread."""


class NoFreeThread(ThreadHung):
    """No thread was free until the deadline; the job did not start."""


class ThreadBlocked(ThreadHung):
    """The job waited behind a job of another rollout, which blocks the thread; it did not start."""


class Job:
    """One call in a thread. began: on the monotonic clock, 0 until it begins. seconds: how long it took.

    reports: whether the thread passes the job's end to the event loop.
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
        """Call the function, in the thread, and drop it: it refers to the `PinnedThread`, which refers to this job."""
        function, self.function = self.function, None
        assert function is not None, "a job runs once"
        try:
            self.result = function()
        except BaseException as error:
            self.error = error
        self.seconds = time.monotonic() - self.began

    def settle(self) -> None:
        """Set the outcome for the caller, if it still waits. On the event loop."""
        if self.future.done():
            return
        # A future refuses StopIteration, and other BaseExceptions would end the event loop.
        if isinstance(self.error, Exception) and not isinstance(self.error, StopIteration):
            self.future.set_exception(self.error)
        elif self.error is not None:  # sys.exit() in a thread must end neither the loop nor the server
            failure = RuntimeError(f"the job raised {type(self.error).__name__}")
            failure.__cause__ = self.error
            self.future.set_exception(failure)
        else:
            self.future.set_result(self.result)


class Batch:
    """Jobs that a thread runs one after the other while the event loop's thread waits for the last one's end."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._ended = threading.Lock()
        self._ended.acquire()
        for job in jobs:
            job.reports = False

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)

    def end(self) -> None:
        """Let the event loop's thread continue. Called in the worker thread."""
        self._ended.release()

    def wait(self, seconds: float) -> None:
        """Block the event loop until the jobs end, at most this long; later ends are reported as for any job."""
        if not self._ended.acquire(timeout=seconds):
            for job in self._jobs:
                job.reports = True  # the thread reads it after it has set `done`: one of the two sees the other


class _Thread:
    """One worker thread with its own queue. running: the job that it runs now."""

    def __init__(self, number: int, returned: Callable[[_Thread, Job], None]) -> None:
        self.inbox: queue.SimpleQueue[Job | Batch | None] = queue.SimpleQueue()
        self.running: Job | None = None
        self._returned = returned
        # A daemon: a thread cannot be killed, and a hung thread must not keep the process alive.
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
            del work  # an idle thread must not hold a rollout in memory

    def _run(self, job: Job) -> None:
        job.began = time.monotonic()  # before `running` is set, whose readers ask how long it has been running
        self.running = job
        job.run()
        self.running = None
        job.done = True
        if job.reports:
            self._returned(self, job)


class PinnedThreads:
    """A pool of threads, at most `size`; created when needed and reused.

    One event loop uses it. `run` runs one job; `open` returns a pinned thread, which runs all its calls.
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
        """The number of threads that were abandoned and are still blocked."""
        return self._hung

    async def run(self, function: Callable[[], T], *, seconds: float, stop: Stop) -> T:
        """Run the job in a thread. After `seconds` call `stop("timeout")`; raise ThreadHung if that does not end the job.

        The time limit includes the wait for a thread; raises NoFreeThread when none becomes free. When the caller is
        cancelled, `stop("cancelled")` is called and the thread returns to the pool once the job ends.
        """
        # usually no wait is needed, and no time to subtract
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
        """Return a pinned thread for the caller alone; wait for one at most `seconds`, then raise NoFreeThread."""
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
        """Wait at most this long for jobs without a caller, such as an environment that is being closed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(not job.counted for job in self._jobs):
                    self._news.clear()
                    await self._news.wait()

    def close(self) -> None:
        """End idle threads; busy ones end with their job."""
        with self._lock:
            self._closed = True
            idle, self._idle = list(self._idle), deque()
        for thread in idle:
            thread.inbox.put(None)

    def _job_ended(self, thread: _Thread, job: Job) -> None:
        """Pass the end of a job to the event loop. In the worker thread."""
        try:
            job.loop.call_soon_threadsafe(self._settle, thread, job)
        except RuntimeError:  # the loop is closed: no caller waits any more
            thread.inbox.put(None)

    def _settle(self, thread: _Thread, job: Job) -> None:
        """Set the job's outcome and release its thread. On the event loop."""
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
        """Abandon a job whose caller has left; its thread stays taken until the job ends.

        If its caller was cancelled, the job has the grace period to stop before it counts as hung.
        """
        # Its thread is not returned yet: it still runs the author's code, and holds its place until that ends.
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
    """One thread, reserved from the pool until `close`.

    Its calls have a `contextvars` context, empty at first, and a separate current event loop, which no other use of the
    thread sees. A copy of the caller's context would share objects that change in place, such as decimal's.
    """

    def __init__(self, pinned_threads: PinnedThreads, thread: _Thread) -> None:
        self._pinned_threads = pinned_threads
        self.thread = thread
        self.job: Job | None = None
        self.is_open = True
        # All calls of an instance come from one thread, so authors may rely on thread-bound libraries; the context
        # keeps what one rollout sets (decimal's precision, a current loop) from the next one in the same thread.
        self._context = Context()
        self._event_loop: asyncio.AbstractEventLoop | None = None

    async def call(self, function: Callable[[], T], *, seconds: float, stop: Stop) -> T:
        """Run one job in this thread; see `PinnedThreads.run`."""
        job = Job(partial(self._isolated, function), asyncio.get_running_loop())
        self.put(job)
        result: T = await self.outcome(job, seconds=seconds, stop=stop)
        return result

    async def outcome(self, job: Job, *, seconds: float, stop: Stop) -> Any:
        """Wait for the end of a job that was begun; see `PinnedThreads.run`."""
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
        """Queue one more job, without waiting for it; nothing after `close`."""
        if not self.is_open:
            return
        job = Job(partial(self._isolated, function), asyncio.get_running_loop())
        # asyncio would log an outcome that is never retrieved
        job.future.cancel()
        self.put(job)

    def _isolated(self, function: Callable[[], T]) -> T:
        """Run a job with this reservation's context and event loop. In the thread."""
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
        """Register a job as the latest."""
        self.job = job
        self._pinned_threads._jobs.add(job)

    def _overdue(self, job: Job, stop: Stop) -> None:
        stop("timeout")
        job.loop.call_later(self._pinned_threads.grace_seconds, self._stuck, job)

    def _stuck(self, job: Job) -> None:
        if job.done or job.future.done():
            return
        # It never ran, so its environment is not to blame: another rollout's is.
        if not job.began:
            job.future.set_exception(ThreadBlocked("another rollout's call blocks the thread"))
            return
        job.overdue = True
        job.future.set_exception(ThreadHung("the environment's code did not return"))

    def close(self) -> None:
        """Return the thread to the pool; a busy thread returns when its job ends."""
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
