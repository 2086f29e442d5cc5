"""Threads that several model rollouts share; all calls of one rollout still come from one thread.

Between two turns of a model an environment mostly works for less than a millisecond, so waking a thread for each call costs
more than the call. A shared thread goes from one rollout's call to the next: with 512 rollouts in flight that takes a
quarter less CPU per turn than a thread for each rollout, and plays half as many more per second.

Sharing is measured, not configured. An environment shares threads while its calls take at most QUICK_SECONDS in the mean;
one slow step, or a judge that is awaited, ends that for some time. Rollouts that already share stay where they are, because
an instance cannot change its thread. If one of them blocks the thread for good, the others fail with ThreadBlocked, and the
environment never shares again.
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
"""Called at the end of a job; its future is done then, or cancelled when the job was not begun."""

SHARED_THREADS = 2
"""Rollouts share this many threads, more only while all of these are busy with a long call."""
QUICK_SECONDS = 0.01
"""By the clock, so it includes the wait for the interpreter and for the processor."""
MEASURED_CALLS = 100
"""An environment's first calls, after which it may share."""
MEAN_OF_CALLS = 50
"""The mean is exponential, with this many calls as its length: one call of half a second ends the sharing."""
BUSY_SECONDS = 0.05
"""A thread whose call has been running for longer takes no new rollout."""
BLOCKED_SECONDS = 10.0
"""After a call that takes longer, the other rollouts of its thread fail."""
PATIENCE_SECONDS = 0.0005
"""How long the event loop waits for a call that is expected to be short, see `SharedThread.soon`."""
MORE_PATIENCE_SECONDS = 0.00005
"""The additional wait for each further call of the batch."""
MOST_PATIENCE_SECONDS = 0.002
MOST_SKIPPED = 1024
"""After calls that took longer, at most this many further calls are not waited for."""


class SharedThreads:
    """Gives each rollout a thread: one of a few shared threads if its environment is quick, else a dedicated thread.

    Rollouts share with others of the same environment. pool: where the threads come from; its size limits the rollouts in
    flight. count: shared threads of one environment. One event loop uses both.
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
        """Return a thread for one rollout of the environment. Raises NoFreeThread if none is free within `seconds`."""
        shares = self.is_quick(environment)
        assignment = self._shortest(environment) if shares else None
        if assignment is None:
            assignment = _Assignment(environment, await self._pool.open(seconds=seconds), shared=shares)
            if shares:
                self._shared[environment][assignment] = None
                self._watch(assignment)
        return SharedThread(self, self._pool, assignment)

    def _shortest(self, environment: str) -> _Assignment | None:
        """Return the shared thread with the fewest rollouts; None if there should be another thread."""
        threads = self._shared[environment]
        if len(threads) < self._count:
            return None
        free = [assignment for assignment in threads if assignment.busy_seconds() <= BUSY_SECONDS]
        # None where all are busy with a long call: another thread is then cheaper than the wait.
        return min(free, key=lambda assignment: len(assignment.rollouts), default=None)

    def is_quick(self, work: str) -> bool:
        """Return whether enough calls that were measured under this name were quick."""
        return self._measured[work].quick

    def measured(self, work: str, seconds: float) -> None:
        """Count the duration of a call. work: an environment, or another name for calls that are measured apart."""
        calls = self._measured[work]
        calls.add(seconds)
        calls.blocked |= seconds > self._blocked_seconds

    def short_calls(self, environment: str) -> _ShortCalls:
        """Return the record of an environment's calls that the event loop waited for."""
        return self._short_calls[environment]

    def run_batch(self, assignment: _Assignment) -> None:
        """Run the jobs that were begun since the last tick, in one waking of the thread, and wait a moment for their end.

        For calls that take microseconds: waking the thread, and the event loop again, costs more than each of them.
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
        # The event loop waits for a short step: two wakings, of this thread and of the loop, cost more than the step.
        # On a busy thread it would wait for another rollout's step.
        if thread.running is None and thread.inbox.empty():
            jobs = Batch([job for job, _ in begun])
            thread.inbox.put(jobs)
            more = MORE_PATIENCE_SECONDS * (len(begun) - 1)
            # Bounded: a longer call continues by itself, and the calls after it are not waited for.
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
        """Check again and again whether a call blocks this thread, as long as it is shared."""
        if assignment in self._shared[assignment.environment]:
            job = assignment.thread.running
            if job is not None and time.monotonic() - job.began > self._blocked_seconds:
                self._block(assignment, job)
            else:
                asyncio.get_running_loop().call_later(self._blocked_seconds / 4, self._watch, assignment)

    def _block(self, assignment: _Assignment, running: Job) -> None:
        """Leave the thread to the call that blocks it: other rollouts' waiting calls fail now, and later calls immediately."""
        self._shared[assignment.environment].pop(assignment, None)
        # For good: what blocked once may block again, and takes the other rollouts of its thread with it.
        self._measured[assignment.environment].blocked = True
        assignment.blocked = True
        for rollout in assignment.rollouts:
            job = rollout.job
            if job is running:
                assignment.blocker = rollout
            elif job is not None and not job.done and not job.future.done():
                job.future.set_exception(ThreadBlocked("another rollout blocks the thread that this rollout shares"))

    def leave(self, assignment: _Assignment, rollout: SharedThread) -> None:
        """Remove a rollout from its thread, which returns to the pool after the last one."""
        assignment.rollouts.discard(rollout)
        job = rollout.job
        if job is not None and job.overdue and not job.done:
            self._measured[assignment.environment].blocked = True
        # The pool has the thread already, and would have it twice.
        if assignment.given_up:
            return
        if not assignment.rollouts:
            self._return(assignment, assignment.last)
        elif job is not None and not job.done and job is assignment.thread.running:
            # A call past its deadline had its grace; one whose caller just left has not.
            grace = 0.0 if job.overdue else self._pool.grace_seconds
            asyncio.get_running_loop().call_later(grace, self._give_up, assignment, job)

    def _give_up(self, assignment: _Assignment, job: Job) -> None:
        """Abandon a call whose caller has left and that did not end in the grace period. Its thread counts as hung."""
        if not assignment.given_up and not job.done:
            self._block(assignment, job)
            job.overdue = True
            self._return(assignment, job)

    def _return(self, assignment: _Assignment, last: Job | None) -> None:
        """Return the thread to the pool, which can use it again when that job has ended."""
        self._shared[assignment.environment].pop(assignment, None)
        assignment.given_up = True
        assignment.pinned.job = last
        assignment.pinned.close()


@dataclass
class _CallSeconds:
    """How long calls take. blocked: one blocked its thread, so the environment never shares again."""

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
    """Whether the event loop may wait for an environment's calls: after a longer call, most are not tried."""

    longer: int = 0
    skip: int = 0

    def expected(self) -> bool:
        """Return whether the next call is expected to be short. Counts it."""
        if self.skip:
            self.skip -= 1
            return False
        return True

    def add(self, short: bool) -> None:
        """Count a call that was waited for. One more that was longer in a row doubles the calls that are skipped."""
        # Each miss blocks the loop for up to 2 ms, so tries become rare quickly where calls are long.
        self.longer = 0 if short else self.longer + 1
        self.skip = 0 if short else min(MOST_SKIPPED, 4 << min(self.longer, 8))


def _ended_later(ended: Ended, job: Job, future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()  # retrieved, or asyncio would log it
    ended(job)


class _Assignment:
    """One thread and the rollouts that use it.

    last: the latest call. batch: calls that are begun in the event loop's next tick. blocked: a call blocks it; blocker: the
    rollout of that call, None when it has left. given_up: the thread is the pool's again.
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
        """Return how long the call that runs now has been running; 0 if none is."""
        job = self.thread.running
        return 0.0 if job is None else time.monotonic() - job.began


class SharedThread(PinnedThread):
    """The thread of one rollout, until `close`. is_shared: whether other rollouts may also use the thread."""

    def __init__(self, threads: SharedThreads, pool: PinnedThreads, assignment: _Assignment) -> None:
        super().__init__(pool, assignment.thread)
        self._threads = threads
        self._assignment = assignment
        self.is_shared = assignment.shared
        assignment.rollouts.add(self)

    async def call(self, function: Callable[[], T], *, seconds: float, stop: Stop, work: str | None = None) -> T:
        """Run one job in this thread; see `PinnedThreads.run`. work: what it is measured as, None for the environment.

        Also raises ThreadBlocked.
        """
        assignment = self._assignment
        if assignment.blocked and assignment.blocker is not self:
            raise ThreadBlocked("another rollout blocked the thread that this rollout shared")
        job = Job(partial(self._isolated, function), asyncio.get_running_loop())
        self.put(job)
        result: T = await self.outcome(job, seconds=seconds, stop=stop, work=work)
        return result

    def soon(self, function: Callable[[], object], ended: Ended) -> bool:
        """Run one job soon, together with others, while the event loop waits, if the environment's calls are short.

        ended: called at its end, on the event loop. Returns False when nothing was begun.
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
        """Wait for the end of a job that was begun; see `call`."""
        try:
            return await super().outcome(job, seconds=seconds, stop=stop)
        finally:
            if job.done:
                self._threads.measured(work or self._assignment.environment, job.seconds)

    def post(self, function: Callable[[], object]) -> None:
        """Queue one more job, see `PinnedThread.post`; `job` remains the called job."""
        called = self.job
        super().post(function)
        self.job = called

    def take(self, job: Job) -> None:
        """Register a job as the latest."""
        self._assignment.last = job
        super().take(job)

    def close(self) -> None:
        """Leave the thread; a job that still runs then is abandoned after the grace period."""
        if self.is_open:
            self.is_open = False
            self._threads.leave(self._assignment, self)
