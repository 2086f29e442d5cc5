"""The interface to a store's database, which SQLite and Postgres implement, and a thread for small transactions."""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Generic, Protocol, TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, TableValuedAlias, func
from sqlalchemy.exc import SQLAlchemyError

from taskapp_kit.errors import StoreError

T = TypeVar("T")


class Cursor(Protocol):
    """The methods that the cursors of all drivers have."""

    @property
    def rowcount(self) -> int:
        """Return the number of written rows."""
        ...

    def executemany(self, statement: str, parameters: Sequence[Sequence[Any]], /) -> object:
        """Run the statement once for each element of `parameters`."""
        ...

    def fetchone(self) -> Sequence[Any] | None:
        """Return the next row, or None if there are no more rows."""
        ...

    def fetchall(self) -> Sequence[Sequence[Any]]:
        """Return the remaining rows."""
        ...


class Driver(Protocol):
    """A driver's connection. Using it without SQLAlchemy saves 0.1 to 0.2 ms of CPU time per commit."""

    def cursor(self) -> Cursor:
        """Return a cursor on this connection."""
        ...

    def execute(self, statement: str, parameters: Sequence[Any] = ..., /) -> Cursor:
        """Run one statement."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


@dataclass(frozen=True, slots=True)
class SqlDialect:
    """The parts of SQL that differ between the databases.

    Attributes:
        mark: The placeholder for a parameter.
        each: A query for the elements of a JSON list.
        skip_locked: The clause that skips rows that other sessions have locked.
    """

    mark: str
    each: str
    skip_locked: str


class SqlDatabase(ABC):
    """One database, with its connections, transactions and errors.

    Attributes:
        place: The database's name in messages, without user name and password.
        writer: The engine for writing.
        readers: The engine for reading. It may be the same engine as `writer`.
        writing: A lock to hold during a transaction that writes.
        turn: A lock to hold while a connection of an engine is used.
        begin: The statement that begins a transaction that writes, on a driver's connection.
        faults: The types of exceptions that the driver and the system raise.
    """

    place: str
    writer: Engine
    readers: Engine
    spelling: SqlDialect
    begin: str
    # Only SQLite needs these two locks: Postgres locks rows, and each of its threads has its own connection.
    writing: AbstractContextManager[Any] = nullcontext()
    turn: AbstractContextManager[Any] = nullcontext()
    faults: tuple[type[Exception], ...] = (SQLAlchemyError, OSError, OverflowError, MemoryError)

    @abstractmethod
    def connect(self) -> Driver:
        """Open a driver's connection for one thread. Close it with `disconnect`. Raises the exceptions in `faults`."""

    def disconnect(self, connection: Driver) -> None:
        """Close a connection that `connect` opened."""
        connection.close()

    @abstractmethod
    def in_transaction(self, connection: Driver) -> bool:
        """Return whether the connection has an open transaction that can be rolled back."""

    @contextmanager
    def transaction(self, connection: Driver) -> Iterator[None]:
        """Run the block in a transaction that writes. Commit at the end, or roll back if the block raises an exception."""
        with self.writing:
            connection.execute(self.begin)
            try:
                yield
                connection.execute("COMMIT")
            finally:
                # Roll back also after a failed COMMIT, because SQLite leaves the transaction open, and the next BEGIN would fail.
                if self.in_transaction(connection):
                    connection.execute("ROLLBACK")

    @abstractmethod
    def explain(self, fault: Exception, doing: str) -> StoreError:
        """Return a StoreError for an exception. The StoreError's `__cause__` contains no secrets.

        doing: What failed: open, read or write.
        """

    @abstractmethod
    def strikes_all(self, fault: Exception) -> bool:
        """Return whether the exception affects every write, so that retrying each job separately does not help."""

    @abstractmethod
    def is_locked(self, fault: Exception) -> bool:
        """Return whether another process or session held a lock for longer than an attempt to write waits for it."""

    @abstractmethod
    def findings(self, connection: Connection) -> list[str]:
        """Run the database's own integrity check on `connection`, and return the findings. The check may take long."""

    @abstractmethod
    def listed_pictures(self) -> TableValuedAlias:
        """Return a table expression whose column `value` contains the hashes in `blob_hashes` of each row of `rollouts`."""

    def octets(self, column: ColumnElement[Any]) -> ColumnElement[int]:
        """Return an expression for the size of a column's string or bytes, in bytes."""
        return func.octet_length(column)

    def hold_pictures(self, connection: Connection) -> None:
        """Lock the images. Until the transaction ends, no other transaction can write or look up images."""
        # SQLite needs no lock, because a transaction that writes excludes all others.
        return

    @abstractmethod
    def size_bytes(self, connection: Connection) -> int:
        """Return the size of the tables in bytes, or 0 for a database in memory."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections."""

    def same_file(self) -> None:
        """Raise StoreError if the file was deleted or replaced, because new writes would be lost."""
        return

    def persist(self, work: Callable[[], T]) -> T:
        """Call `work` and return its result. If the connection is lost, call `work` again.

        Therefore `work` must open its own connection, and running it twice must be harmless.
        """
        # The connection to a file cannot be lost, so there is no second call.
        return work()


Work = TypeVar("Work")

MOST_AT_ONCE = 128
"""The maximum number of jobs in one transaction, so that the first job does not wait for thousands."""
LARGEST_TRANSACTION_BYTES = 16 * 2**20
"""The maximum number of bytes of events and images in one transaction."""

Job = Callable[[Driver], T]


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[Work]):
    """A queued job.

    Attributes:
        prepare: A function that creates the job. It is called without the write lock.
        writes: Whether the job needs the write lock.
        order: See BatchThread.
        future: The future for the job's result.
    """

    prepare: Callable[[], Work]
    writes: bool
    order: str | None
    future: asyncio.Future[Any]


Prepared = Sequence[tuple[_Waiting[Work], Work]]


class BatchThread(Generic[Work]):
    """A thread that runs jobs in the order of arrival, with several jobs in each transaction.

    Within a transaction, adjacent jobs that have an `order` are sorted by it. This prevents deadlocks between servers that
    write the same rows concurrently. A job runs again if its transaction failed, or if it is unknown whether the commit
    succeeded. Running a job twice must therefore be harmless.

    Args:
        database: The database to write.
        thread_name: The thread's name.
        perform: A function that runs the jobs of a transaction and returns one outcome for each job: its result, or a
            StoreError that affects only this job. Such an error does not undo the job's earlier writes.
        size: A function that returns the size of a job in bytes.
        lock_seconds: How long to wait for a lock of another process or session after the first attempt.
    """

    def __init__(
        self,
        database: SqlDatabase,
        thread_name: str,
        perform: Callable[[Driver, Sequence[Work]], Sequence[Any]],
        *,
        size: Callable[[Work], int] | None = None,
        lock_seconds: float = 0.0,
    ) -> None:
        self._database = database
        self._perform = perform
        self._size = size
        self._lock_seconds = lock_seconds
        self._waiting: deque[_Waiting[Work]] = deque()
        self._lock = threading.Lock()
        self._busy = False
        self._connection: Driver | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=thread_name)

    def submit(
        self, prepare: Callable[[], Work], *, writes: bool = True, order: str | None = None
    ) -> asyncio.Future[Any]:
        """Queue a job and return a future for its result.

        `prepare` creates the job in the thread, without the write lock. The job runs even if the caller is cancelled. If the
        job fails, the future's exception is a StoreError. Raises StoreError if the thread was stopped.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_retrieve)
        with self._lock:
            self._waiting.append(_Waiting(prepare, writes, order, future))
            # The thread works until the queue is empty, so a caller must start it only if it is idle.
            idle, self._busy = not self._busy, True
        if idle:
            try:
                self._thread.submit(self._run)
            except RuntimeError:
                raise StoreError(f"The store {self._database.place} is closed.", hint="Restart the server.") from None
        return future

    def stop(self) -> None:
        """Run the queued jobs, close the connection and end the thread. Blocks until the jobs are done."""
        try:
            # This runs after the queued jobs, in the thread that uses the connection.
            self._thread.submit(self._forget_connection).result()
        finally:
            self._thread.shutdown(wait=False)

    # The following methods run in the thread.

    def _run(self) -> None:
        while True:
            with self._lock:
                batch = [self._waiting.popleft() for _ in range(min(MOST_AT_ONCE, len(self._waiting)))]
                if not batch:
                    self._busy = False
                    return
            prepared: list[tuple[_Waiting[Work], Work]] = []
            size = 0
            for waiting in _in_order(batch):
                try:
                    work = waiting.prepare()
                except Exception as fault:
                    _set_results([(waiting.future, self._explained(fault, waiting.writes))])
                    continue
                prepared.append((waiting, work))
                size += 0 if self._size is None else self._size(work)
                if size > LARGEST_TRANSACTION_BYTES:
                    self._settle(prepared)
                    prepared, size = [], 0
            self._settle(prepared)

    def _settle(self, prepared: Prepared[Work]) -> None:
        if prepared:
            outcomes = self._outcomes(prepared)
            _set_results([(waiting.future, outcome) for (waiting, _), outcome in zip(prepared, outcomes, strict=True)])

    def _outcomes(self, prepared: Prepared[Work]) -> Sequence[Any]:
        """Run the jobs and return the result or the StoreError of each job."""
        until = time.monotonic() + self._lock_seconds
        try:
            while True:
                try:
                    return self._database.persist(lambda: self._attempt(prepared))
                except self._database.faults as fault:
                    # One attempt waits as long as the database allows. A save retries, because its rollout may have cost money.
                    if not self._database.is_locked(fault) or time.monotonic() >= until:
                        raise
        except StoreError as refusal:
            return [refusal] * len(prepared)
        except Exception as fault:
            if len(prepared) > 1 and not self._database.strikes_all(fault):
                # One of the jobs may be too large for the disk, so run each job separately.
                return [outcome for piece in prepared for outcome in self._outcomes([piece])]
            return [self._explained(fault, any(waiting.writes for waiting, _ in prepared))] * len(prepared)

    def _attempt(self, prepared: Prepared[Work]) -> Sequence[Any]:
        try:
            self._database.same_file()
            with self._database.turn:
                if self._connection is None:
                    self._connection = self._database.connect()
                pieces = [work for _, work in prepared]
                if not any(waiting.writes for waiting, _ in prepared):
                    return self._perform(self._connection, pieces)
                with self._database.transaction(self._connection):
                    return self._perform(self._connection, pieces)
        # The kit's code raised it, so the connection is still usable.
        except StoreError:
            raise
        except Exception:
            # After an error of the driver, a transaction may still be open, or the connection may be lost.
            self._forget_connection()
            raise

    def _explained(self, fault: Exception, writes: bool) -> StoreError:
        if isinstance(fault, StoreError):
            return fault
        return self._database.explain(fault, "write" if writes else "read")

    def _forget_connection(self) -> None:
        """Close the connection after an error. The next transaction opens a new connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(*self._database.faults):
                self._database.disconnect(connection)


def each_alone(connection: Driver, jobs: Sequence[Job[Any]]) -> list[Any]:
    """Call each job. Return the result of each job, or the StoreError that it raised before it wrote anything."""
    outcomes: list[Any] = []
    for job in jobs:
        try:
            outcomes.append(job(connection))
        except StoreError as refusal:
            outcomes.append(refusal)
    return outcomes


def _in_order(batch: Sequence[_Waiting[Work]]) -> Iterator[_Waiting[Work]]:
    for ordered, neighbors in groupby(batch, key=lambda waiting: waiting.order is not None):
        run = list(neighbors)
        yield from sorted(run, key=lambda waiting: waiting.order or "") if ordered else run


def _set_results(results: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    # Wake each event loop only once for all its results.
    for loop, same_loop in groupby(results, key=lambda result: result[0].get_loop()):
        with suppress(RuntimeError):  # the loop is closed, so no caller is waiting
            loop.call_soon_threadsafe(_resolve, list(same_loop))


def _resolve(results: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, outcome in results:
        if future.done():  # the caller was cancelled
            continue
        if isinstance(outcome, StoreError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Retrieve the future's error. Otherwise asyncio would log it if the caller was cancelled."""
    if not future.cancelled():
        future.exception()
