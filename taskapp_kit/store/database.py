"""The database as a store and its idempotency records use it; SQLite and Postgres implement it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, Engine, TableValuedAlias
from sqlalchemy.exc import SQLAlchemyError

from taskapp_kit.errors import StoreError

T = TypeVar("T")


class Cursor(Protocol):
    """What an executed statement left, as every driver gives it."""

    @property
    def rowcount(self) -> int:
        """Rows that were written."""
        ...

    def executemany(self, statement: str, parameters: Sequence[Sequence[Any]], /) -> object:
        """Runs one statement for each of these parameters."""
        ...

    def fetchone(self) -> Sequence[Any] | None:
        """The next row; None when there is none."""
        ...

    def fetchall(self) -> Sequence[Sequence[Any]]:
        """The rows that are left."""
        ...


class Driver(Protocol):
    """A connection of a driver's own, without SQLAlchemy: a commit takes 0.1 to 0.2 ms less of CPU by it."""

    def cursor(self) -> Cursor:
        """A cursor on it."""
        ...

    def execute(self, statement: str, parameters: Sequence[Any] = ..., /) -> Cursor:
        """Runs one statement."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...


@dataclass(frozen=True, slots=True)
class SqlDialect:
    """Where two databases write the same statement differently.

    mark: stands for a parameter. each: a query that gives the elements of a JSON list. skip_locked: what leaves out
    rows that somebody else is writing.
    """

    mark: str
    each: str
    skip_locked: str


class SqlDatabase(ABC):
    """One database: its connections, its ways of beginning and failing.

    place: how sentences call it; never with a user name or a password. writer, readers: engines; in some databases one.
    writing: to be held during a transaction that writes. turn: to be held during any use of an engine's connection.
    begin: begins a transaction that writes, on a driver's connection. faults: what driver and system raise.
    """

    place: str
    writer: Engine
    readers: Engine
    spelling: SqlDialect
    begin: str
    writing: AbstractContextManager[Any] = nullcontext()
    turn: AbstractContextManager[Any] = nullcontext()
    faults: tuple[type[Exception], ...] = (SQLAlchemyError, OSError, OverflowError, MemoryError)

    @abstractmethod
    def connect(self) -> Driver:
        """A connection of the driver's own; who asks for it closes it. Raises what is in `faults`."""

    @abstractmethod
    def in_transaction(self, connection: Driver) -> bool:
        """Whether a transaction was begun on it that can still be rolled back."""

    @contextmanager
    def transaction(self, connection: Driver) -> Iterator[None]:
        """A transaction that writes: committed at the end of the block, rolled back when the block raises."""
        with self.writing:
            connection.execute(self.begin)
            try:
                yield
                connection.execute("COMMIT")
            finally:
                if self.in_transaction(connection):
                    connection.execute("ROLLBACK")

    @abstractmethod
    def explain(self, fault: Exception, doing: str) -> StoreError:
        """A sentence for what was raised while `doing` (open, read, write). Its `__cause__` is what may be shown."""

    @abstractmethod
    def strikes_all(self, fault: Exception) -> bool:
        """Whether the fault would strike any other write as well, so that trying each alone makes no sense."""

    @abstractmethod
    def is_locked(self, fault: Exception) -> bool:
        """Whether another process or session held a lock for longer than one attempt waits."""

    @abstractmethod
    def findings(self, connection: Connection) -> list[str]:
        """What the database itself says is wrong with what it holds; `connection` may then read for long."""

    @abstractmethod
    def listed_pictures(self) -> TableValuedAlias:
        """For each row of `rollouts` the hashes in `blob_hashes`, as the column `value`."""

    def hold_pictures(self, connection: Connection) -> None:
        """Until the transaction ends, no other one that keeps or looks for pictures is under way."""
        return

    @abstractmethod
    def size_bytes(self, connection: Connection) -> int:
        """Bytes that the tables take; 0 in memory."""

    @abstractmethod
    def close(self) -> None:
        """Closes all connections."""

    def same_file(self) -> None:
        """Raises StoreError when what we write now would be lost."""
        return

    def persist(self, work: Callable[[], T]) -> T:
        """What `work` makes; where a connection can be lost, `work` is done again on a new one.

        So `work` begins by asking for its connection, and is harmless when it was done before.
        """
        return work()
