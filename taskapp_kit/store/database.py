"""The database interface of a store, implemented for SQLite and Postgres, and the thread that does its small transactions."""

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
    """The common part of the drivers' cursors."""

    @property
    def rowcount(self) -> int:
        """The number of written rows."""
        ...

    def executemany(self, statement: str, parameters: Sequence[Sequence[Any]], /) -> object:
        """Runs one statement for each of these parameters."""
        ...

    def fetchone(self) -> Sequence[Any] | None:
        """The next row; None when there is none."""
        ...

    def fetchall(self) -> Sequence[Sequence[Any]]:
        """The remaining rows."""
        ...


class Driver(Protocol):
    """A driver's connection without SQLAlchemy, with which a commit takes 0.1 to 0.2 ms less CPU."""

    def cursor(self) -> Cursor:
        """A cursor on this connection."""
        ...

    def execute(self, statement: str, parameters: Sequence[Any] = ..., /) -> Cursor:
        """Runs one statement."""
        ...

    def close(self) -> None:
        """Closes the connection."""
        ...


@dataclass(frozen=True, slots=True)
class SqlDialect:
    """The differences between the databases' SQL.

    mark: the placeholder of a parameter. each: a query for the elements of a JSON list. skip_locked: the clause that leaves
    out rows which another session is writing.
    """

    mark: str
    each: str
    skip_locked: str


class SqlDatabase(ABC):
    """One database: its connections, transactions and errors.

    place: its name in messages, without user name and password. writer, readers: engines, in some databases the same one.
    writing: a lock to hold during a transaction that writes. turn: a lock to hold while an engine's connection is used.
    begin: begins a transaction that writes, on a driver's connection. faults: the exceptions of driver and system.
    """

    place: str
    writer: Engine
    readers: Engine
    spelling: SqlDialect
    begin: str
    # Only SQLite needs these two: Postgres locks rows, and each thread has a connection of its own.
    writing: AbstractContextManager[Any] = nullcontext()
    turn: AbstractContextManager[Any] = nullcontext()
    faults: tuple[type[Exception], ...] = (SQLAlchemyError, OSError, OverflowError, MemoryError)

    @abstractmethod
    def connect(self) -> Driver:
        """Opens a driver's connection for one thread, until `disconnect`. Raises the types in `faults`."""

    def disconnect(self, connection: Driver) -> None:
        """Closes what `connect` opened."""
        connection.close()

    @abstractmethod
    def in_transaction(self, connection: Driver) -> bool:
        """Whether the connection has an open transaction that can be rolled back."""

    @contextmanager
    def transaction(self, connection: Driver) -> Iterator[None]:
        """A transaction that writes: committed at the end of the block, rolled back when the block raises."""
        with self.writing:
            connection.execute(self.begin)
            try:
                yield
                connection.execute("COMMIT")
            finally:
                # Also after a COMMIT that failed: SQLite leaves its transaction open, and the next BEGIN would fail.
                if self.in_transaction(connection):
                    connection.execute("ROLLBACK")

    @abstractmethod
    def explain(self, fault: Exception, doing: str) -> StoreError:
        """The StoreError for an exception while `doing` (open, read, write). Its `__cause__` may be shown."""

    @abstractmethod
    def strikes_all(self, fault: Exception) -> bool:
        """Whether the fault would affect any other write, too, so that trying each alone does not help."""

    @abstractmethod
    def is_locked(self, fault: Exception) -> bool:
        """Whether another process or session held a lock for longer than one attempt waits."""

    @abstractmethod
    def findings(self, connection: Connection) -> list[str]:
        """The database's own report of damage in its content. May take long on `connection`."""

    @abstractmethod
    def listed_pictures(self) -> TableValuedAlias:
        """For each row of `rollouts` the hashes in `blob_hashes`, as the column `value`."""

    def octets(self, column: ColumnElement[Any]) -> ColumnElement[int]:
        """The size of a text or of bytes, in bytes."""
        return func.octet_length(column)

    def hold_pictures(self, connection: Connection) -> None:
        """Locks the pictures: until the transaction ends, no other one writes or looks for pictures."""
        # In SQLite there is nothing to do: a transaction that writes excludes all others.
        return

    @abstractmethod
    def size_bytes(self, connection: Connection) -> int:
        """The size of the tables in bytes; 0 in memory."""

    @abstractmethod
    def close(self) -> None:
        """Closes all connections."""

    def same_file(self) -> None:
        """Raises StoreError when the file was replaced, so that new writes would be lost."""
        return

    def persist(self, work: Callable[[], T]) -> T:
        """Calls `work` and returns its result; repeats it on a new connection if a connection is lost.

        So `work` must begin by getting its connection, and repeating it must be harmless.
        """
        # A file's connection is not lost.
        return work()


Work = TypeVar("Work")

MOST_AT_ONCE = 128
"""The limit on pieces of work in one transaction, so that the first of them does not wait for thousands."""
LARGEST_TRANSACTION_BYTES = 16 * 2**20
"""The limit on bytes of events and images in one transaction, to bound memory."""

Job = Callable[[Driver], T]


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[Work]):
    """A queued piece. prepare: makes it, without the write lock. writes: whether it needs that lock."""

    prepare: Callable[[], Work]
    writes: bool
    order: str | None
    future: asyncio.Future[Any]


Prepared = Sequence[tuple[_Waiting[Work], Work]]


class BatchThread(Generic[Work]):
    """Does work in the order of arrival; in one transaction, neighboring pieces with an `order` are sorted by it.
    The order prevents deadlocks between servers that write the same rows at the same time.

    Work is done again when its transaction failed, or when it is unknown whether its commit succeeded; so it must be
    harmless to do it twice.

    perform: does the work of one transaction; returns for each piece its result, or the StoreError with which it alone is
    refused. What a refused piece wrote before is not undone. size: the bytes that a piece holds. lock_seconds: how long to
    wait for a lock that another process or session holds, beyond the first attempt.
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
        """A future with the result of a piece, which is made in the thread without the write lock.

        The work is done even if the caller is cancelled. Its error is a StoreError. Raises StoreError after `stop`.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_retrieve)
        with self._lock:
            self._waiting.append(_Waiting(prepare, writes, order, future))
            # The thread works until nothing waits, so only a caller that found it idle has to start it.
            idle, self._busy = not self._busy, True
        if idle:
            try:
                self._thread.submit(self._run)
            except RuntimeError:
                raise StoreError(f"the store {self._database.place} is closed.", hint="Restart the server.") from None
        return future

    def stop(self) -> None:
        """Does the queued work, then closes the connection and ends the thread. Blocks."""
        try:
            # Behind the queued work, in the thread that uses the connection.
            self._thread.submit(self._forget_connection).result()
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
        """Does the work; returns one outcome for each piece, its result or a StoreError."""
        until = time.monotonic() + self._lock_seconds
        try:
            while True:
                try:
                    return self._database.persist(lambda: self._attempt(prepared))
                except self._database.faults as fault:
                    # One attempt waits as long as the database lets it; a save is worth more, it was paid for.
                    if not self._database.is_locked(fault) or time.monotonic() >= until:
                        raise
        except StoreError as refusal:
            return [refusal] * len(prepared)
        except Exception as fault:
            if len(prepared) > 1 and not self._database.strikes_all(fault):
                # One of them may be too large for the disk, so each is tried alone and has its own outcome.
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
        # Raised by our own code, so the connection is as it was.
        except StoreError:
            raise
        except Exception:
            # After an error of the driver, nobody knows whether a transaction is open or the connection is alive.
            self._forget_connection()
            raise

    def _explained(self, fault: Exception, writes: bool) -> StoreError:
        if isinstance(fault, StoreError):
            return fault
        return self._database.explain(fault, "write" if writes else "read")

    def _forget_connection(self) -> None:
        """Closes the connection after a fault; the next work opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(*self._database.faults):
                self._database.disconnect(connection)


def each_alone(connection: Driver, jobs: Sequence[Job[Any]]) -> list[Any]:
    """Calls each job; its outcome is its result, or the StoreError that it raises before it writes."""
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
    # Each event loop is woken once for all of its results.
    for loop, same_loop in groupby(results, key=lambda result: result[0].get_loop()):
        with suppress(RuntimeError):  # the loop is closed, so no caller waits there
            loop.call_soon_threadsafe(_resolve, list(same_loop))


def _resolve(results: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, outcome in results:
        if future.done():  # its caller was cancelled
            continue
        if isinstance(outcome, StoreError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Retrieves the error, because asyncio logs errors that a cancelled caller does not retrieve."""
    if not future.cancelled():
        future.exception()
