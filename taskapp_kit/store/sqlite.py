"""The store on SQLite: a file in WAL mode with synchronous=FULL, or a database in memory."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    Engine,
    LargeBinary,
    TableValuedAlias,
    cast,
    create_engine,
    event,
    func,
)
from sqlalchemy.pool import QueuePool, StaticPool

from taskapp_kit.errors import StoreError, StoreRefusal
from taskapp_kit.records.protocols import Clock
from taskapp_kit.store.database import Driver, SqlDatabase, SqlDialect
from taskapp_kit.store.idempotency_sql import SqlIdempotencyStore
from taskapp_kit.store.schema import METADATA, ROLLOUTS, migrate
from taskapp_kit.store.sql import SAVE_SECONDS, SqlStore, StoreCheck
from taskapp_kit.system.private_files import flush, make_private_folder, open_private

__all__ = ["Database", "SqliteStore", "StoreCheck", "explain"]


READ_SECONDS = 60.0
"""The time limit of a read, in seconds. It is needed because the pages of a crafted file can form a cycle."""
PROGRESS_STEPS = 1_000_000
"""How many instructions SQLite's virtual machine runs between two checks of the time limit."""


class SqliteStore(SqlStore):
    """A `Store` in the file `path`, or in memory if `path` is None.

    The constructor blocks, and creates the file and missing directories. `close` moves the write-ahead log into the file.

    Args:
        path: The file, or None for a database in memory.
        busy_timeout_seconds: How long opening the store and writing idempotency records wait for a process that writes to
            the file, in seconds.
        save_seconds: How long a save waits for such a process, in seconds.

    Raises:
        StoreError: The file cannot be used.
    """

    def __init__(
        self, path: Path | None, *, busy_timeout_seconds: float = 10.0, save_seconds: float = SAVE_SECONDS
    ) -> None:
        self._in_memory = path is None
        super().__init__(Database(path, busy_timeout_seconds), save_seconds=save_seconds)

    def coordinator(self, clock: Clock) -> SqlIdempotencyStore | None:
        """Create an idempotency store in the same file, or return None for a store in memory.

        Close it before this store is closed.
        """
        return None if self._in_memory else super().coordinator(clock)


class Database(SqlDatabase):
    """One SQLite database. Transactions of `writer` begin with the write lock.

    `place` is the absolute path, or `memory`. In memory, both engines share one connection, and reads and writes take turns.
    The lock `writing` lets the threads of this process take turns without delay. Without it, SQLite would let a waiting
    thread sleep and try again.

    Raises StoreError if the database cannot be opened.
    """

    spelling = SqlDialect("?", "SELECT value FROM json_each(?)", "")
    begin = "BEGIN IMMEDIATE"
    faults = (*SqlDatabase.faults, sqlite3.Error)

    def __init__(self, path: Path | None, busy_timeout_seconds: float, read_seconds: float = READ_SECONDS) -> None:
        self._path = None if path is None else path.resolve()
        self._busy_timeout_seconds, self._read_seconds = busy_timeout_seconds, read_seconds
        self.place = "memory" if self._path is None else str(self._path)
        self.writing = threading.Lock()
        if self._path is None:
            # In memory, there is only one connection, which two threads must not use concurrently.
            self.turn = threading.Lock()
        try:
            self._identity = _created(self._path) if self._path else (0, 0)
            self.writer = self._engine(read_only=False)
            self.readers = self._engine(read_only=True) if self._path else self.writer
            with self.writer.connect() as connection:
                if self._path:
                    self._write_ahead(connection)
                with connection.begin():
                    migrate(connection, self.place)
                    self._only_our_tables(connection)
        except StoreError:
            raise
        except Exception as fault:
            raise self.explain(fault, "open") from fault

    def _only_our_tables(self, connection: Connection) -> None:
        """Raise StoreError if reading the file's tables could run expressions that another program defined."""
        # Views, triggers, virtual tables and generated columns run code from the file when it is read or written.
        kinds = connection.exec_driver_sql("SELECT type, name, sql FROM sqlite_master").all()
        odd = [
            name
            for kind, name, sql in kinds
            if kind in ("view", "trigger") or "VIRTUAL" in str(sql).upper().split()[:2]
        ]
        for table in METADATA.tables.values():
            # table_xinfo also lists generated columns. The last value of a row marks them.
            columns = connection.exec_driver_sql(f"PRAGMA table_xinfo({table.name})").all()
            if {column[1] for column in columns} != set(table.columns.keys()) or any(column[6] for column in columns):
                odd.append(table.name)
        if odd:
            raise StoreError(
                f"Another program changed the store {self.place}: it added or altered {odd[0]!r}.",
                hint="Use another file. To copy data from this file, use SQLite's own tools.",
            )

    def same_file(self) -> None:
        """Raise StoreError if the open file was moved, deleted or replaced, because new writes would be lost."""
        if self._path is None:
            return
        try:
            found = self._path.stat()
        except OSError:
            found = None
        # If the file was replaced, the path has a different inode.
        if found is None or (found.st_dev, found.st_ino) != self._identity:
            raise StoreError(
                f"The store {self.place} was deleted or replaced while it was open, so nothing more can be stored in it.",
                hint="Restart the server to open or create the file again.",
            )

    def size_bytes(self, connection: Connection) -> int:
        """Return the size of the file and its write-ahead log in bytes, or 0 for a database in memory."""
        if self._path is None:
            return 0
        files = (self._path, Path(f"{self._path}-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def connect(self) -> Driver:
        """Open a driver's connection for one thread. For a database in memory, return its only connection."""
        if self._path is None:
            only: Driver = self.writer.raw_connection().dbapi_connection  # type: ignore[assignment]
            return only
        connection: sqlite3.Connection = sqlite3.connect(self._path, **self._connect_args())
        _prepare(connection, read_only=False)
        return connection

    def disconnect(self, connection: Driver) -> None:
        """Close a connection that `connect` opened."""
        if self._path is not None:
            connection.close()

    def in_transaction(self, connection: Driver) -> bool:
        """Return whether the connection has an open transaction that can be rolled back."""
        return isinstance(connection, sqlite3.Connection) and connection.in_transaction

    def explain(self, fault: Exception, doing: str) -> StoreError:
        """Return a StoreError for an exception. doing: What failed: open, read or write."""
        error = explain(fault, self.place, doing)
        error.__cause__ = fault
        return error

    def strikes_all(self, fault: Exception) -> bool:
        """Return whether another process holds the lock. Other errors may affect only one rollout that is too large."""
        return self.is_locked(fault)

    def is_locked(self, fault: Exception) -> bool:
        """Return whether another process held the write lock for longer than `busy_timeout_seconds`."""
        name = getattr(getattr(fault, "orig", fault), "sqlite_errorname", "")
        return name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))

    def findings(self, connection: Connection) -> list[str]:
        """Return the findings of SQLite's integrity check."""
        lines = [str(line) for line in connection.exec_driver_sql("PRAGMA integrity_check").scalars()]
        return [line for line in lines if line != "ok"]

    def listed_pictures(self) -> TableValuedAlias:
        """Return a table expression whose column `value` contains the hashes in `blob_hashes` of each row of `rollouts`."""
        return func.json_each(ROLLOUTS.c.blob_hashes).table_valued("value")

    def octets(self, column: ColumnElement[Any]) -> ColumnElement[int]:
        """Return an expression for the size of a column's string or bytes, in bytes.

        With SQLite 3.43 or newer, octet_length reads the size from the row's header.
        """
        return func.length(column if isinstance(column.type, LargeBinary) else cast(column, LargeBinary))

    def close(self) -> None:
        """Close all connections. Closing the last connection moves the write-ahead log into the file."""
        self.readers.dispose()
        self.writer.dispose()

    def _connect_args(self) -> dict[str, Any]:
        return {
            "isolation_level": None,  # the driver must not begin transactions, because they begin explicitly
            "check_same_thread": False,
            "timeout": self._busy_timeout_seconds,
        }

    def _engine(self, *, read_only: bool) -> Engine:
        options: dict[str, Any] = {"pool_size": 2, "max_overflow": 0} if self._path else {}
        engine = create_engine(
            URL.create("sqlite", database=str(self._path) if self._path else None),
            poolclass=QueuePool if self._path else StaticPool,
            connect_args=self._connect_args(),
            hide_parameters=True,  # an error's text must not contain stored data
            **options,
        )

        def prepare(connection: sqlite3.Connection, _: object) -> None:
            _prepare(connection, read_only=read_only)

        def begin(connection: Connection) -> None:
            driver: Any = connection.connection.dbapi_connection  # the driver's own call saves 35 µs for each commit
            # BEGIN IMMEDIATE, because a transaction that reads first may get SQLITE_BUSY without waiting when it writes.
            driver.execute("BEGIN" if read_only else "BEGIN IMMEDIATE")
            if read_only:
                until = time.monotonic() + self._read_seconds
                # SQLite has no time limit for statements.
                driver.set_progress_handler(lambda: time.monotonic() > until, PROGRESS_STEPS)

        event.listen(engine, "connect", prepare)
        event.listen(engine, "begin", begin)
        return engine

    def _write_ahead(self, connection: Connection) -> None:
        """Switch the file to WAL. Retry, because SQLite does not wait if another server switches at the same time."""
        driver: Any = connection.connection.dbapi_connection
        until = time.monotonic() + self._busy_timeout_seconds
        while True:
            try:
                (mode,) = driver.execute("PRAGMA journal_mode=WAL").fetchone()
                break
            except sqlite3.OperationalError as fault:
                if fault.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() > until:
                    raise
                time.sleep(0.02)
        if mode != "wal":
            raise StoreError(
                f"The file system of {self.place} does not support a write-ahead log (SQLite reports {mode!r}).",
                hint="Put the store on a local disk.",
            )


def _prepare(connection: sqlite3.Connection, *, read_only: bool) -> None:
    connection.execute("PRAGMA trusted_schema=OFF")  # the indexes of a file from another source may call functions
    # With NORMAL, a power failure may lose the last commits, but a rollout must be stored once it was answered.
    connection.execute("PRAGMA synchronous=FULL")
    # 64 MiB. Without this limit, the log never shrinks after a large transaction.
    connection.execute("PRAGMA journal_size_limit=67108864")
    if read_only:
        connection.execute("PRAGMA query_only=ON")


def _created(path: Path) -> tuple[int, int]:
    """Create the file (mode 600) and missing directories (mode 700), and flush the file's directory entry.

    Return the device and the inode of the file.
    """
    if path.is_dir():
        raise StoreError(
            f"The store {path} is a directory.", hint=f"Use the path of a file, for example {path / 'rollouts.db'}."
        )
    make_private_folder(path.parent)
    descriptor = open_private(path)
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    # A new file survives a power failure only if its directory was flushed.
    flush(path.parent)
    return found.st_dev, found.st_ino


_SENTENCES = (
    ("SQLITE_FULL", "the disk is full", "Free some space, or use a store on another disk."),
    ("SQLITE_BUSY", "another process has held the write lock for too long", "Find the process that uses the file."),
    ("SQLITE_LOCKED", "another process has held the write lock for too long", "Find the process that uses the file."),
    ("SQLITE_READONLY", "the file is read-only", "Make the file and its directory writable, or use another path."),
    ("SQLITE_CANTOPEN", "the file cannot be opened", "Make the file and its directory writable, or use another path."),
    (
        "SQLITE_INTERRUPT",
        "the read took too long",
        "Read fewer rollouts. If the file comes from another source, it may have been crafted to cause this.",
    ),
    ("SQLITE_PERM", "access to the file is not permitted", "Make the file and its directory writable."),
    ("SQLITE_NOTADB", "the file is not a SQLite database", "Use another file for the store."),
    ("SQLITE_CORRUPT", "the file is damaged", "Restore it from a backup, or use another file."),
    ("SQLITE_IOERR", "the disk reported an error", "Check the disk's space, quota and health."),
    (
        "SQLITE_TOOBIG",
        "the rollout is larger than SQLite allows (1 GB)",
        "Make the environment's observations smaller.",
    ),
)


def explain(fault: Exception, place: str, doing: str) -> StoreError:
    """Return a StoreError for an exception of the store at `place`. doing: What failed: open, read or write."""
    origin = getattr(fault, "orig", None) or fault
    if isinstance(origin, OSError):
        return StoreError(
            f"Could not {doing} the store {place}: {origin.strerror or type(origin).__name__}.",
            hint="Create the directory and make it writable, free some space, or use another path (or none).",
        )
    name = getattr(origin, "sqlite_errorname", "") or type(origin).__name__
    # Only this rollout is too large. The store can still accept others.
    kind = StoreRefusal if name == "SQLITE_TOOBIG" else StoreError
    for beginning, reason, hint in _SENTENCES:
        if name.startswith(beginning):
            return kind(f"Could not {doing} the store {place}: {reason} ({name}).", hint=hint)
    return StoreError(f"Could not {doing} the store {place}: {name}.", hint="Check the file with SQLite's own tools.")
