"""A thread with a connection of its own that does small jobs on the file: all that wait, in one transaction.

As with the rollouts (`writer.py`) those that come while one transaction is being flushed make the next one, so many
at once share a flush, and a single one waits for nobody.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from taskapp_kit.errors import StoreError
from taskapp_kit.store.sqlite_file import Database, explain

T = TypeVar("T")

MOST_AT_ONCE = 128
"""Jobs in one transaction at most."""

Job = Callable[[sqlite3.Connection], T]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A job that waits for its turn. prepare: makes the job, without the write lock. writes: it needs that lock."""

    prepare: Callable[[], Job[Any]]
    writes: bool
    future: asyncio.Future[Any]


class Turns:
    """Does jobs in the order in which they come. A job may be run again when its transaction broke.

    A job that raises StoreError is refused alone, and what it wrote until then stands; so it writes nothing before.
    """

    def __init__(self, database: Database, thread_name: str) -> None:
        self._database = database
        self._waiting: deque[_Waiting] = deque()
        self._lock = threading.Lock()
        self._busy = False
        self._connection: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=thread_name)

    def do(self, job: Job[T], *, writes: bool = True) -> asyncio.Future[T]:
        """What `job` makes; it is done even when nobody waits any more. Raises StoreError."""
        return self.do_prepared(lambda: job, writes=writes)

    def do_prepared(self, prepare: Callable[[], Job[T]], *, writes: bool = True) -> asyncio.Future[T]:
        """The same, where making the job is work too, which nobody else should wait for."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_looked_at)
        with self._lock:
            self._waiting.append(_Waiting(prepare, writes, future))
            idle, self._busy = not self._busy, True
        if idle:
            self._thread.submit(self._run)
        return asyncio.shield(future)

    async def stop(self) -> None:
        """Does what waits, then closes the connection and ends the thread."""
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
            for one in batch:
                try:
                    prepared.append((one, one.prepare()))
                except Exception as fault:
                    _tell([(one.future, self._explained(fault, one.writes))])
            _tell([(one.future, outcome) for (one, _), outcome in zip(prepared, self._done(prepared), strict=True)])

    def _done(self, prepared: Sequence[tuple[_Waiting, Job[Any]]]) -> list[Any]:
        """One outcome for each: what the job made, or a StoreError."""
        writes = any(one.writes for one, _ in prepared)
        try:
            self._database.same_file()
            if self._connection is None:
                self._connection = self._database.connect()
            jobs = [job for _, job in prepared]
            return self._written(self._connection, jobs) if writes else _made(self._connection, jobs)
        except StoreError as refusal:
            return [refusal] * len(prepared)
        except Exception as fault:
            self._forget_connection()
            error = self._explained(fault, writes)
            busy = getattr(fault, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
            if len(prepared) > 1 and not busy:
                # One of them may be what is too large for the disk: each gets its own answer.
                return [outcome for one in prepared for outcome in self._done([one])]
            return [error] * len(prepared)

    def _written(self, connection: sqlite3.Connection, jobs: Sequence[Job[Any]]) -> list[Any]:
        with self._database.writing:
            connection.execute("BEGIN IMMEDIATE")
            try:
                outcomes = _made(connection, jobs)
                connection.execute("COMMIT")
                return outcomes
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def _explained(self, fault: Exception, writes: bool) -> StoreError:
        error = explain(fault, self._database.place, "write" if writes else "read")
        error.__cause__ = fault
        return error

    def _forget_connection(self) -> None:
        """After a fault the next job begins on a new connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()


def _made(connection: sqlite3.Connection, jobs: Sequence[Job[Any]]) -> list[Any]:
    outcomes: list[Any] = []
    for job in jobs:
        try:
            outcomes.append(job(connection))
        except StoreError as refusal:
            outcomes.append(refusal)
    return outcomes


def _tell(told: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    if told:
        with suppress(RuntimeError):  # of a loop that is closed: nobody waits there any more
            told[0][0].get_loop().call_soon_threadsafe(_resolve, told)


def _resolve(told: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, outcome in told:
        if future.done():
            continue
        if isinstance(outcome, StoreError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _looked_at(future: asyncio.Future[Any]) -> None:
    """Whoever waited may have gone; asyncio need not complain of an error that nobody took."""
    if not future.cancelled():
        future.exception()
