"""A pool of child processes that run jobs for one event loop. The child's program defines what a job does.

A shared child runs many jobs at once, and the least busy child gets the next job. An exclusive job has its own child, so
that a hang or a crash affects only one job. Hung children are killed, and dead children are replaced. A job's deadline
includes its time in the queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence

from taskapp_kit.rollout.executors.child import ChildProcess
from taskapp_kit.rollout.executors.job import (
    FrameHandler,
    JobHung,
    JobLost,
    JobRaised,
    NeverBegan,
    Running,
    StartFailed,
    WorkerDied,
)
from taskapp_kit.rollout.executors.protocol import Frame

__all__ = ["FrameHandler", "JobHung", "JobLost", "JobRaised", "NeverBegan", "ProcessPool", "StartFailed", "WorkerDied"]

log = logging.getLogger("taskapp_kit.run")

START_TRIES = 3
"""After this many consecutive failed starts, jobs are rejected with the error of the start instead of being queued."""
# The first retry is immediate, so that the next rollout need not wait after an environment has crashed.
_BACKOFF_SECONDS = (0.0, 0.1, 0.5)


class _Group:
    """The shared or the exclusive children of a pool. limit: the maximum number of children, without the exclusive spare."""

    def __init__(self, exclusive: bool, limit: int) -> None:
        self.exclusive = exclusive
        self.limit = limit
        self.children: list[ChildProcess] = []
        self.retiring: list[ChildProcess] = []
        self.starting = 0
        self.line: deque[Running] = deque()

    def free(self) -> ChildProcess | None:
        """Return the least busy free child, if any. An exclusive child is only returned while fewer than `limit` are busy."""
        best: ChildProcess | None = None
        fewest, busy = 1 << 30, 0
        for child in self.children:
            count = len(child.jobs)
            busy += count
            if count < fewest and child.takes():
                best, fewest = child, count
        return None if self.exclusive and busy >= self.limit else best

    def missing(self) -> int:
        """Return how many children should be started now."""
        # Starting children count, or each queued job would start another child.
        there = len(self.children) + self.starting
        if not self.exclusive:  # retiring children with running jobs may at most double the number
            return min(self.limit - there, 2 * self.limit - there - len(self.retiring))
        if self.limit == 0:
            return 0
        busy = sum(1 for child in self.children if child.jobs)
        # one spare child, so that an isolated rollout need not wait for an interpreter and the author's imports
        return min(busy + len(self.line), self.limit) + 1 - there


class ProcessPool:
    """A pool of child processes. Use it on one event loop, whose thread must live as long as the children.

    argv: the command, usually from `child_python.python_command`. The number of a socket for `serve_jobs` is appended.
    environment: all environment variables of the children. shared: the number of children that run many jobs each.
    exclusive: the maximum number of concurrent jobs with their own child. start_seconds: the time limit for a child's
    start. retry_seconds: the delays between starts after START_TRIES consecutive failures. The last delay repeats.
    stop_grace_seconds: how long a job may take to end after a stop request. spare_seconds: how long an exclusive child may
    be idle before it is ended. One spare child is always left running.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        shared: int,
        exclusive: int = 0,
        start_seconds: float = 60.0,
        retry_seconds: Sequence[float] = (5.0, 15.0, 60.0),
        stop_grace_seconds: float = 1.0,
        spare_seconds: float = 60.0,
    ) -> None:
        self.argv = tuple(argv)
        self.environment = dict(environment)
        self.start_seconds = start_seconds
        self.retry_seconds = tuple(retry_seconds)
        self.stop_grace_seconds = stop_grace_seconds
        self.spare_seconds = spare_seconds
        self._shared = _Group(False, shared)
        self._exclusive = _Group(True, exclusive)
        self._replaced = self._killed = self._hung = 0
        self._failures = 0
        self._refusing: StartFailed | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._trim: asyncio.TimerHandle | None = None
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: set[ChildProcess] = set()
        self._idle = asyncio.Event()

    async def start(self) -> None:
        """Start the shared children and wait until they are ready. Start the exclusive spare in the background.

        If there are no shared children, wait for the spare. Raises StartFailed with the child's message, after all children
        have been ended.
        """
        first = self._shared if self._shared.limit else self._exclusive
        count = first.limit if first is self._shared else min(1, first.limit)
        outcomes = await asyncio.gather(*(self._child(first) for _ in range(count)), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                await self.close(0)
                raise outcome
        # in the background, so that a server need not wait for processes that only isolated environments use
        self._fill(self._exclusive)

    async def run(
        self,
        job: Frame,
        *,
        blob: bytes = b"",
        exclusive: bool,
        seconds: float,
        step_seconds: float | None = None,
        on_frame: FrameHandler,
    ) -> tuple[Frame, bytes]:
        """Run one job in a child. If the caller is cancelled, the child is asked to stop, but is not awaited.

        Args:
            job: The frame that the child's handler receives.
            blob: Bytes that accompany the frame.
            exclusive: Whether the job needs its own child.
            seconds: The time limit, counted from this call. At the limit, the child is asked to stop. If the
                job ends within the grace period, its result is returned.
            step_seconds: The time limit between `step_begins` and `step_ends` in the child.
            on_frame: A function that handles the job's frames in order, on the event loop. For a frame of `WorkerJob.ask`, the
                function returns the reply, or None for an empty reply. It may return an awaitable. Later frames then wait,
                and the child is paused if it sends more. An exception in `on_frame` ends the job and is raised by this method.

        Returns:
            The handler's last frame and its blob.

        Raises:
            JobLost: The job did not end normally. The subclasses are WorkerDied, JobHung (shared child), JobRaised,
                NeverBegan and StartFailed.
            BadFrame: The frame is too large.
            TypeError, ValueError: The frame is not JSON.
        """
        group = self._exclusive if exclusive else self._shared
        if self._closing:
            raise NeverBegan("the worker processes are closing")
        if group.limit == 0:
            raise NeverBegan(f"there are no {'exclusive' if exclusive else 'shared'} worker processes")
        loop = asyncio.get_running_loop()
        running = Running(
            job,
            blob,
            seconds=seconds,
            step_seconds=step_seconds,
            grace_seconds=self.stop_grace_seconds,
            on_frame=on_frame,
        )
        # queued jobs come first, or a steady stream of new jobs could starve them
        child = group.free() if not group.line else None
        if child is not None:
            child.begin(running)
        elif self._refusing is not None and self._retry is not None and not group.children:
            # immediately, because waiting for a start that keeps failing would only use up the job's deadline
            raise StartFailed(self._refusing.reason)
        else:
            group.line.append(running)
        if exclusive or child is None:
            self._fill(group)
        running.deadline = loop.call_later(max(0.0, seconds), self._deadline, running, group)
        try:
            return await running.future
        except asyncio.CancelledError:
            if running.begun:
                running.stop("cancelled")
            else:
                running.end(NeverBegan("the caller was cancelled"))
                if running in group.line:
                    group.line.remove(running)
            raise

    async def close(self, grace_seconds: float) -> None:
        """Reject new and queued jobs. Wait for running jobs during the grace period, then stop them, then kill the children."""
        self._closing = True
        for timer in (self._retry, self._trim):
            if timer is not None:
                timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        for group in (self._shared, self._exclusive):
            self._refuse_queue(group, NeverBegan("the worker processes are closing"))
        await self._quiet(grace_seconds)
        # ask before killing, so that environments can clean up outside the process
        for child in self._all_children():
            for running in list(child.jobs.values()):
                running.stop("cancelled")
        await self._quiet(self.stop_grace_seconds)
        children = self._all_children()
        for child in children:
            if child.jobs or child.hung:
                child.kill("closing", "the worker processes are closing")
            else:
                child.retire()
        if self._tasks:
            await asyncio.wait(self._tasks)
        last = {*children, *self._ending}
        ends = [asyncio.ensure_future(child.reaped()) for child in last]
        if ends:
            await asyncio.wait(ends, timeout=self.stop_grace_seconds)
        for child in last:
            child.kill("closing", "it did not exit within the grace period")
        if ends:
            await asyncio.wait(ends)

    def counters(self) -> dict[str, int]:
        """Return the counters for `/health` and `/metrics`.

        The totals since the pool's creation are `replaced` (children that died or retired), `killed` (children that the
        parent killed) and `hung` (jobs that were abandoned or killed). The current numbers are `alive` (children), `waiting`
        (queued jobs) and `in_flight` (running jobs).
        """
        children = self._all_children()
        return {
            "alive": len(children),
            "replaced": self._replaced,
            "killed": self._killed,
            "hung": self._hung,
            "waiting": len(self._shared.line) + len(self._exclusive.line),
            "in_flight": sum(len(child.jobs) for child in children),
        }

    # -- jobs ------------------------------------------------------------------------------------------------------

    def _deadline(self, running: Running, group: _Group) -> None:
        if running.begun:
            running.stop("timeout")
            return
        running.end(NeverBegan(f"no worker process was free within the job's time limit of {running.seconds:g} s"))
        if running in group.line:
            group.line.remove(running)

    def _job_ended(self, child: ChildProcess) -> None:
        """Handle a job in this child that ended or was abandoned."""
        group = self._exclusive if child.exclusive else self._shared
        if child.retiring:
            self._leave(group, child)
        elif group.line:
            self._serve(group)
        elif child.exclusive and len(group.children) > 1 and self._trim is None:
            self._trim = asyncio.get_running_loop().call_later(self.spare_seconds, self._end_spares, group)
        if self._closing and not any(child.jobs for child in self._all_children()):
            self._idle.set()

    def _end_spares(self, group: _Group) -> None:
        """End idle exclusive children except one. If several are left, schedule another check."""
        self._trim = None
        loop = asyncio.get_running_loop()
        # an idle child uses the memory of an interpreter and the author's data, so only one stays for the next job
        idle = [child for child in group.children if not child.jobs]
        for child in idle[1:]:
            if child.idle_since <= loop.time() - self.spare_seconds:
                group.children.remove(child)
                self._ending.add(child)
                child.retire()
        if len(group.children) > 1 and not self._closing:
            self._trim = loop.call_later(self.spare_seconds, self._end_spares, group)

    def _serve(self, group: _Group) -> None:
        """Start queued jobs, in order, while children are free."""
        while group.line and (child := group.free()) is not None:
            running = group.line.popleft()
            if running.future.done():  # cancelled in this loop iteration
                continue
            try:
                child.begin(running)
            except (TypeError, ValueError) as error:
                running.end(error)

    def _refuse_queue(self, group: _Group, error: JobLost) -> None:
        line, group.line = group.line, deque()
        for running in line:
            running.end(type(error)(error.reason))

    async def _quiet(self, seconds: float) -> None:
        """Wait until no job is running, for at most `seconds`."""
        if seconds > 0 and any(child.jobs for child in self._all_children()):
            self._idle.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._idle.wait()
            except TimeoutError:
                pass

    # -- children --------------------------------------------------------------------------------------------------

    def _all_children(self) -> list[ChildProcess]:
        return [child for group in (self._shared, self._exclusive) for child in (*group.children, *group.retiring)]

    def _fill(self, group: _Group) -> None:
        """Start missing children in the background."""
        if self._closing or (self._refusing is not None and self._retry is not None):
            return
        missing = group.missing()
        for _ in range(min(missing, 1) if self._refusing is not None else missing):
            group.starting += 1
            task = asyncio.get_running_loop().create_task(self._grow(group))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _grow(self, group: _Group) -> None:
        """Start one child. After a failure, delay the next start. After START_TRIES failures, the delay is much longer."""
        try:
            if self._refusing is None:
                await asyncio.sleep(_BACKOFF_SECONDS[min(self._failures, len(_BACKOFF_SECONDS) - 1)])
            await self._child(group)
        except StartFailed as error:
            log.error("%s", error.reason)
            if self._failures >= START_TRIES and not self._closing:
                self._give_up_starting(error)
        finally:
            group.starting -= 1
        self._serve(group)
        self._fill(group)

    def _give_up_starting(self, error: StartFailed) -> None:
        self._refusing = error
        if self._retry is None:
            wait = self.retry_seconds[min(self._failures - START_TRIES, len(self.retry_seconds) - 1)]
            self._retry = asyncio.get_running_loop().call_later(wait, self._try_again)
        for group in (self._shared, self._exclusive):
            if not group.children:
                self._refuse_queue(group, error)

    def _try_again(self) -> None:
        self._retry = None
        for group in (self._shared, self._exclusive):
            self._fill(group)

    async def _child(self, group: _Group) -> None:
        """Start a child and add it to the group. Raises StartFailed after counting the failure."""
        child = ChildProcess(exclusive=group.exclusive, free=self._job_ended, gone=self._gone)
        # a child joins the group when it is ready, but `close` must also end children that are not ready
        self._ending.add(child)
        try:
            await child.start(self.argv, self.environment, self.start_seconds)
        except StartFailed:
            self._failures += 1
            await child.reaped()
            self._ending.discard(child)
            raise
        self._ending.discard(child)
        self._failures = 0
        self._refusing = None
        group.children.append(child)
        if self._closing:
            child.retire()

    def _leave(self, group: _Group, child: ChildProcess) -> None:
        """Retire a child with hung jobs, and kill the child when its other jobs have ended."""
        if child in group.children:
            self._hung += 1
            group.children.remove(child)
            group.retiring.append(child)
            self._fill(group)
        if not child.jobs:
            child.kill("deadline", "its other jobs have ended and one of its threads hangs")

    def _gone(self, child: ChildProcess) -> None:
        """Handle the end of a child that died, was killed or exited."""
        group = self._exclusive if child.exclusive else self._shared
        known = child in group.children or child in group.retiring
        for children in (group.children, group.retiring):
            if child in children:
                children.remove(child)
        self._ending.add(child)
        asyncio.ensure_future(child.reaped()).add_done_callback(lambda _: self._ending.discard(child))
        if not known or self._closing:
            if not any(child.jobs for child in self._all_children()):
                self._idle.set()
            return
        self._replaced += 1
        self._killed += child.killed_for is not None
        self._hung += child.exclusive and child.killed_for is not None
        self._serve(group)
        self._fill(group)
