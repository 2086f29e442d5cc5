"""A thread with its own connection that runs small database jobs, all waiting ones in one transaction.

As with the rollouts (`group_commit.py`) the jobs that arrive while one transaction is flushed make the next one, so many
at once share a flush, and a single one does not wait.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

from taskapp_kit.errors import StoreError
from taskapp_kit.store.database import Driver, SqlDatabase

T = TypeVar("T")

MOST_AT_ONCE = 128
"""The limit on jobs in one transaction."""

Job = Callable[[Driver], T]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A queued job. prepare: makes the job, without the write lock. writes: whether it needs that lock."""

    prepare: Callable[[], Job[Any]]
    writes: bool
    order: str | None
    future: asyncio.Future[Any]


class BatchThread:
    """Runs jobs in the order of arrival; in one transaction, neighbouring jobs with an `order` are sorted by it.
    The order prevents deadlocks between servers that write the same rows at the same time.

    A job is run again when its transaction failed, or when it is unknown whether its commit succeeded; so it must be
    harmless to run it twice.

    A job that raises StoreError is refused alone. What it wrote before is not undone, so it must raise before it writes.
    """

    def __init__(self, database: SqlDatabase, thread_name: str) -> None:
        self._database = database
        self._waiting: deque[_Waiting] = deque()
        self._lock = threading.Lock()
        self._busy = False
        self._connection: Driver | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=thread_name)

    def do(self, job: Job[T], *, writes: bool = True, order: str | None = None) -> asyncio.Future[T]:
        """Runs `job` and returns its result. The job runs even if its caller is cancelled. Raises StoreError."""
        return asyncio.shield(self.do_prepared(lambda: job, writes=writes, order=order))

    def do_prepared(
        self, prepare: Callable[[], Job[T]], *, writes: bool = True, order: str | None = None
    ) -> asyncio.Future[T]:
        """Like `do`, for a job whose preparation does not need the write lock. The caller shields the future."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_retrieve)
        with self._lock:
            self._waiting.append(_Waiting(prepare, writes, order, future))
            idle, self._busy = not self._busy, True
        if idle:
            self._thread.submit(self._run)
        return future

    async def stop(self) -> None:
        """Runs the queued jobs, then closes the connection and ends the thread."""
        try:
            await asyncio.shield(asyncio.wrap_future(self._thread.submit(self._forget_connection)))
        finally:
            self._thread.shutdown(wait=False)

    # What follows runs in the thread.

    def _run(self) -> None:
        while True:
            with self._lock:
                batch = [self._waiting.popleft() for _ in range(min(MOST_AT_ONCE, len(self._waiting)))]
                if not batch:
                    self._busy = False
                    return
            prepared = []
            for one in _in_order(batch):
                try:
                    prepared.append((one, one.prepare()))
                except Exception as fault:
                    _set_results([(one.future, self._explained(fault, one.writes))])
            _set_results(
                [(one.future, outcome) for (one, _), outcome in zip(prepared, self._done(prepared), strict=True)]
            )

    def _done(self, prepared: Sequence[tuple[_Waiting, Job[Any]]]) -> list[Any]:
        """Runs the jobs; returns one outcome for each, the result or a StoreError."""
        try:
            return self._database.persist(lambda: self._attempt(prepared))
        except StoreError as refusal:
            return [refusal] * len(prepared)
        except Exception as fault:
            if len(prepared) > 1 and not self._database.strikes_all(fault):
                # One of them may be too large for the disk, so each is tried alone and has its own outcome.
                return [outcome for one in prepared for outcome in self._done([one])]
            return [self._explained(fault, any(one.writes for one, _ in prepared))] * len(prepared)

    def _attempt(self, prepared: Sequence[tuple[_Waiting, Job[Any]]]) -> list[Any]:
        try:
            self._database.same_file()
            if self._connection is None:
                self._connection = self._database.connect()
            jobs = [job for _, job in prepared]
            writes = any(one.writes for one, _ in prepared)
            return self._written(self._connection, jobs) if writes else _made(self._connection, jobs)
        except StoreError:
            raise
        except Exception:
            self._forget_connection()
            raise

    def _written(self, connection: Driver, jobs: Sequence[Job[Any]]) -> list[Any]:
        with self._database.transaction(connection):
            return _made(connection, jobs)

    def _explained(self, fault: Exception, writes: bool) -> StoreError:
        return self._database.explain(fault, "write" if writes else "read")

    def _forget_connection(self) -> None:
        """Closes the connection after a fault; the next job opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(*self._database.faults):
                connection.close()


def _in_order(batch: Sequence[_Waiting]) -> Iterator[_Waiting]:
    for ordered, neighbours in groupby(batch, key=lambda one: one.order is not None):
        run = list(neighbours)
        yield from sorted(run, key=lambda one: one.order or "") if ordered else run


def _made(connection: Driver, jobs: Sequence[Job[Any]]) -> list[Any]:
    outcomes: list[Any] = []
    for job in jobs:
        try:
            outcomes.append(job(connection))
        except StoreError as refusal:
            outcomes.append(refusal)
    return outcomes


def _set_results(results: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    if results:
        with suppress(RuntimeError):  # its event loop is closed
            results[0][0].get_loop().call_soon_threadsafe(_resolve, results)


def _resolve(results: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, outcome in results:
        if future.done():
            continue
        if isinstance(outcome, StoreError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Retrieves the error, because asyncio logs errors that a cancelled caller does not retrieve."""
    if not future.cancelled():
        future.exception()
