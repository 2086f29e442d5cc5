"""Threads that several model rollouts share. All calls of one rollout still run in one thread.

Between two turns of a model, most environments work for less than a millisecond, so waking a thread costs more than the call
itself. A shared thread runs the calls of several rollouts one after the other. With 512 rollouts in flight, sharing takes 25 %
less CPU time per turn than a thread for each rollout, and 50 % more rollouts run per second.

An environment shares threads while its calls take at most QUICK_SECONDS on average. One slow step, or a slow judge, ends the
sharing for some time. Rollouts that already share a thread stay in it, because an instance cannot change its thread.
If a rollout blocks its thread permanently, the thread's other rollouts fail with ThreadBlocked, and the environment never
shares threads again.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from taskapp_kit.rollout.executors.threads import Batch, Job, PinnedThread, PinnedThreads, Stop, ThreadBlocked

T = TypeVar("T")

Ended = Callable[[Job], None]
"""Called at the end of a job. The job's future is then done, or cancelled if the job never began."""

SHARED_THREADS = 2
"""The number of threads that rollouts share. More threads are added only while all of them run a long call."""
QUICK_SECONDS = 0.01
"""The limit on the mean duration of quick calls, in wall time, including waits for the GIL and the processor."""
MEASURED_CALLS = 100
"""The number of calls to measure before an environment may share threads."""
MEAN_OF_CALLS = 50
"""The length of the exponential moving average, in calls. One call of half a second ends the sharing."""
BUSY_SECONDS = 0.05
"""A thread whose current call has taken longer than this is not assigned to a new rollout."""
BLOCKED_SECONDS = 10.0
"""If a call takes longer than this, the other rollouts of its thread fail."""
PATIENCE_SECONDS = 0.0005
"""How long the event loop waits for a call that is expected to be short. See `SharedThread.soon`."""
MORE_PATIENCE_SECONDS = 0.00005
"""The additional waiting time for each further call in a batch."""
MOST_PATIENCE_SECONDS = 0.002
MOST_SKIPPED = 1024
"""After long calls, the event loop does not wait for the next calls. This is the maximum number of such calls."""


class SharedThreads:
    """Assigns a thread to each rollout: a shared thread if the environment is quick, or else a dedicated thread.

    Only rollouts of the same environment share threads. Use this on the event loop of the pool. pool: provides the threads.
    The size of the pool limits the rollouts in flight. count: the number of shared threads for each environment.
    """

    def __init__(
        self, pool: PinnedThreads, *, count: int = SHARED_THREADS, blocked_seconds: float = BLOCKED_SECONDS
    ) -> None:
        self._pool = pool
        self._count = count
        self._blocked_seconds = blocked_seconds
        self._shared: defaultdict[str, dict[_Assignment, None]] = defaultdict(dict)
        self._measured: defaultdict[str, _CallSeconds] = defaultdict(_CallSeconds)
        self._short_calls: defaultdict[str, _ShortCalls] = defaultdict(_ShortCalls)

    async def open(self, environment: str, *, seconds: float) -> SharedThread:
        """Return a thread for one rollout of the environment. Raises NoFreeThread if no thread is free within `seconds`."""
        shares = self.is_quick(environment)
        assignment = self._shortest(environment) if shares else None
        if assignment is None:
            assignment = _Assignment(environment, await self._pool.open(seconds=seconds), shared=shares)
            if shares:
                self._shared[environment][assignment] = None
                self._watch(assignment)
        return SharedThread(self, self._pool, assignment)

    def _shortest(self, environment: str) -> _Assignment | None:
        """Return the shared thread with the fewest rollouts, or None if another thread should be added."""
        threads = self._shared[environment]
        if len(threads) < self._count:
            return None
        free = [assignment for assignment in threads if assignment.busy_seconds() <= BUSY_SECONDS]
        # None if all run a long call, because another thread is then cheaper than waiting
        return min(free, key=lambda assignment: len(assignment.rollouts), default=None)

    def is_quick(self, work: str) -> bool:
        """Return whether enough calls were measured under the name `work`, and their mean duration is short."""
        return self._measured[work].quick

    def measured(self, work: str, seconds: float) -> None:
        """Record the duration of a call. work: the environment's name, or another name for calls measured separately."""
        calls = self._measured[work]
        calls.add(seconds)
        calls.blocked |= seconds > self._blocked_seconds

    def short_calls(self, environment: str) -> _ShortCalls:
        """Return the record of the environment's calls for which the event loop waited."""
        return self._short_calls[environment]

    def run_batch(self, assignment: _Assignment) -> None:
        """Run the jobs of the event loop's current tick in one wake-up of the thread, and wait briefly for their end.

        For calls that take microseconds, this costs less than waking the thread and the event loop for each call.
        """
        batch, assignment.batch = assignment.batch, []
        begun = []
        for rollout, job, ended in batch:
            if not rollout.is_open or assignment.blocked:
                job.future.cancel()
                ended(job)
            else:
                begun.append((job, ended))
                rollout.take(job)
        if not begun:
            return
        thread, calls = assignment.thread, self._short_calls[assignment.environment]
        # The event loop waits for a short step, because waking the thread and the loop costs more than the step. It does
        # not wait for a busy thread, because it would wait for another rollout's step.
        if thread.running is None and thread.inbox.empty():
            jobs = Batch([job for job, _ in begun])
            thread.inbox.put(jobs)
            more = MORE_PATIENCE_SECONDS * (len(begun) - 1)
            # The wait is bounded. A longer call continues by itself, and the loop does not wait for the calls after it.
            jobs.wait(min(PATIENCE_SECONDS + more, MOST_PATIENCE_SECONDS))
            calls.add(begun[-1][0].done)
        else:
            for job, _ in begun:
                thread.inbox.put(job)
        for job, ended in begun:
            if job.done:
                self._pool._settle(thread, job)
                self.measured(assignment.environment, job.seconds)
                ended(job)
            else:
                job.future.add_done_callback(partial(_ended_later, ended, job))

    def _watch(self, assignment: _Assignment) -> None:
        """Check repeatedly whether a call blocks this thread, while the thread is shared."""
        if assignment in self._shared[assignment.environment]:
            job = assignment.thread.running
            if job is not None and time.monotonic() - job.began > self._blocked_seconds:
                self._block(assignment, job)
            else:
                asyncio.get_running_loop().call_later(self._blocked_seconds / 4, self._watch, assignment)

    def _block(self, assignment: _Assignment, running: Job) -> None:
        """Mark the thread as blocked by a call. Waiting calls of other rollouts fail now, and later calls when they are made."""
        self._shared[assignment.environment].pop(assignment, None)
        # permanently, because a call that blocked once may block again and fail the other rollouts of its thread
        self._measured[assignment.environment].blocked = True
        assignment.blocked = True
        for rollout in assignment.rollouts:
            job = rollout.job
            if job is running:
                assignment.blocker = rollout
            elif job is not None and not job.done and not job.future.done():
                job.future.set_exception(ThreadBlocked("another rollout blocks the thread that this rollout shares"))

    def leave(self, assignment: _Assignment, rollout: SharedThread) -> None:
        """Remove a rollout from its thread. The thread returns to the pool after its last rollout."""
        assignment.rollouts.discard(rollout)
        job = rollout.job
        if job is not None and job.overdue and not job.done:
            self._measured[assignment.environment].blocked = True
        # the pool already has the thread and must not get it twice
        if assignment.given_up:
            return
        if not assignment.rollouts:
            self._return(assignment, assignment.last)
        elif job is not None and not job.done and job is assignment.thread.running:
            # A call past its deadline already had a grace period, but a call whose caller has just left did not.
            grace = 0.0 if job.overdue else self._pool.grace_seconds
            asyncio.get_running_loop().call_later(grace, self._give_up, assignment, job)

    def _give_up(self, assignment: _Assignment, job: Job) -> None:
        """Abandon a call whose caller has left and that did not end in the grace period. Its thread counts as hung."""
        if not assignment.given_up and not job.done:
            self._block(assignment, job)
            job.overdue = True
            self._return(assignment, job)

    def _return(self, assignment: _Assignment, last: Job | None) -> None:
        """Return the thread to the pool, which can use it again after the job `last` has ended."""
        self._shared[assignment.environment].pop(assignment, None)
        assignment.given_up = True
        assignment.pinned.job = last
        assignment.pinned.close()


@dataclass
class _CallSeconds:
    """The mean duration of calls. blocked: whether a call has blocked its thread, so that the environment no longer shares."""

    calls: int = 0
    mean: float = 0.0
    blocked: bool = False

    def add(self, seconds: float) -> None:
        self.calls += 1
        self.mean += (seconds - self.mean) / min(self.calls, MEAN_OF_CALLS)

    @property
    def quick(self) -> bool:
        return self.calls >= MEASURED_CALLS and self.mean <= QUICK_SECONDS and not self.blocked


@dataclass
class _ShortCalls:
    """Decides whether the event loop waits for an environment's call. After a long call it skips most of the next calls."""

    longer: int = 0
    skip: int = 0

    def expected(self) -> bool:
        """Return whether the next call is expected to be short, and count the call."""
        if self.skip:
            self.skip -= 1
            return False
        return True

    def add(self, short: bool) -> None:
        """Record a call for which the loop waited. Each consecutive long call doubles the number of skipped calls."""
        # Each long call blocks the loop for up to 2 ms, so attempts quickly become rare if calls are long.
        self.longer = 0 if short else self.longer + 1
        self.skip = 0 if short else min(MOST_SKIPPED, 4 << min(self.longer, 8))


def _ended_later(ended: Ended, job: Job, future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()  # retrieved, because asyncio would log it
    ended(job)


class _Assignment:
    """One thread and the rollouts that use it.

    last: the latest call. batch: the calls that begin in the event loop's next tick. blocked: whether a call blocks the
    thread. blocker: the rollout of the blocking call, or None if that rollout has left. given_up: whether the thread was
    returned to the pool.
    """

    def __init__(self, environment: str, pinned: PinnedThread, *, shared: bool) -> None:
        self.environment = environment
        self.pinned = pinned
        self.thread = pinned.thread
        self.shared = shared
        self.rollouts: set[SharedThread] = set()
        self.last: Job | None = None
        self.batch: list[tuple[SharedThread, Job, Ended]] = []
        self.blocked = False
        self.blocker: SharedThread | None = None
        self.given_up = False

    def busy_seconds(self) -> float:
        """Return how long the current call has been running, in seconds, or 0 if no call is running."""
        job = self.thread.running
        return 0.0 if job is None else time.monotonic() - job.began


class SharedThread(PinnedThread):
    """The thread of one rollout until `close`. is_shared: whether other rollouts may also use the thread."""

    def __init__(self, threads: SharedThreads, pool: PinnedThreads, assignment: _Assignment) -> None:
        super().__init__(pool, assignment.thread)
        self._threads = threads
        self._assignment = assignment
        self.is_shared = assignment.shared
        assignment.rollouts.add(self)

    async def call(self, function: Callable[[], T], *, seconds: float, stop: Stop, work: str | None = None) -> T:
        """Run one job in this thread; see `PinnedThreads.run`. Also raises ThreadBlocked if another rollout blocks the thread.

        work: the name under which the job's duration is recorded. Defaults to the environment's name.
        """
        assignment = self._assignment
        if assignment.blocked and assignment.blocker is not self:
            raise ThreadBlocked("another rollout blocked the thread that this rollout shared")
        job = Job(partial(self._isolated, function), asyncio.get_running_loop())
        self.put(job)
        result: T = await self.outcome(job, seconds=seconds, stop=stop, work=work)
        return result

    def soon(self, function: Callable[[], object], ended: Ended) -> bool:
        """Run one job in the next batch, while the event loop waits, if the environment's calls are short.

        Returns False, and runs nothing, if they are not or if the thread is blocked. ended: a function that the event loop
        calls at the end of the job.
        """
        assignment = self._assignment
        if assignment.blocked or not self._threads.short_calls(assignment.environment).expected():
            return False
        job = Job(partial(self._isolated, function), asyncio.get_running_loop())
        if not assignment.batch:
            job.loop.call_soon(self._threads.run_batch, assignment)
        assignment.batch.append((self, job, ended))
        return True

    async def outcome(self, job: Job, *, seconds: float, stop: Stop, work: str | None = None) -> Any:
        """Wait for a job that has begun, and return its result. See `call`."""
        try:
            return await super().outcome(job, seconds=seconds, stop=stop)
        finally:
            if job.done:
                self._threads.measured(work or self._assignment.environment, job.seconds)

    def post(self, function: Callable[[], object]) -> None:
        """Queue another job; see `PinnedThread.post`. The attribute `job` remains the job of the last `call`."""
        called = self.job
        super().post(function)
        self.job = called

    def take(self, job: Job) -> None:
        """Register a job as the latest job."""
        self._assignment.last = job
        super().take(job)

    def close(self) -> None:
        """Leave the thread. A job that is still running is abandoned after the grace period."""
        if self.is_open:
            self.is_open = False
            self._threads.leave(self._assignment, self)
