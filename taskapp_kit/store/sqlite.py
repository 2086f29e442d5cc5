"""The store on SQLite: a file in WAL mode with synchronous=FULL, or a database in memory.

Writes go through `Writer`, one transaction for all that wait. Reads run in two threads on connections of their own, so
neither blocks the event loop, and a reader never waits for the writer.
"""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, bindparam, func, select, true
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import SQLAlchemyError

from taskapp_kit.contract.ports import Clock, StoredRollout
from taskapp_kit.errors import StoreError
from taskapp_kit.store.rows import Row, differing, from_row, to_row
from taskapp_kit.store.schema import BLOBS, ROLLOUTS
from taskapp_kit.store.sqlite_file import Database, explain
from taskapp_kit.store.tickets import SqliteCoordinator
from taskapp_kit.store.writer import Outcome, Writer

T = TypeVar("T")

LARGEST_TRANSACTION_BYTES = 16 * 2**20
"""Events and pictures beyond which waiting rollouts are spread over several transactions, to bound memory."""

_DIALECT = sqlite.dialect(paramstyle="qmark")
_INSERT_ROLLOUT = str(
    sqlite.insert(ROLLOUTS).on_conflict_do_nothing(index_elements=["rollout_id"]).compile(dialect=_DIALECT)
)
_INSERT_BLOB = str(sqlite.insert(BLOBS).on_conflict_do_nothing(index_elements=["sha256"]).compile(dialect=_DIALECT))
_ROLLOUT = select(*ROLLOUTS.columns).where(ROLLOUTS.c.rollout_id == bindparam("rollout_id"))
_BLOB = select(BLOBS.c.bytes).where(BLOBS.c.sha256 == bindparam("sha256"))
_LISTED = [column for column in ROLLOUTS.columns if column.name != "events"]
_RECENT = select(*_LISTED).order_by(ROLLOUTS.c.created_at.desc(), ROLLOUTS.c.rollout_id).limit(bindparam("limit"))
_RECENT_OF = _RECENT.where(ROLLOUTS.c.environment == bindparam("environment"))


@dataclass(frozen=True, slots=True)
class StoreCheck:
    """What `check()` found. `integrity`: SQLite's own findings, empty when it has none. `missing_blobs`: hashes of
    pictures that a rollout lists and the store lacks. `damaged`: rollouts and pictures whose content cannot be read
    or does not match its hash. `size_bytes`: of the file and its write-ahead log, 0 in memory."""

    rollouts: int
    blobs: int
    size_bytes: int
    integrity: list[str] = field(default_factory=list)
    missing_blobs: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True when nothing is wrong."""
        return not (self.integrity or self.missing_blobs or self.damaged)


class SqliteStore:
    """A `Store` in the file `path`, or in memory when `path` is None. Opening creates what is not there; blocks.

    `busy_timeout_seconds`: how long a write waits for another process that is writing to the same file.
    Raises StoreError when the place cannot be used.
    """

    def __init__(self, path: Path | None, *, busy_timeout_seconds: float = 10.0) -> None:
        self._database = Database(path, busy_timeout_seconds)
        self.place = self._database.place
        # One connection serves everything in memory: reads and writes take turns there, in threads as always.
        self._in_memory = path is None
        self._turn: AbstractContextManager[Any] = threading.Lock() if self._in_memory else nullcontext()
        self._connection: Connection | None = None
        self._closed = False
        self._readers = ThreadPoolExecutor(2, thread_name_prefix="taskapp-store-reader")
        self._writer = Writer(self._commit, self.place)

    async def save(self, rollout: StoredRollout) -> None:
        """Keeps the rollout; when this returns, it is on disk.

        Saving the same rollout again is fine; another one under the same id is refused. So are values that would not
        come back equal, pictures whose bytes are neither given nor kept already, and keys in `policy`. A refusal is a
        StoreError that names the field, and touches no other rollout.
        """
        self._open()
        await self._writer.write(rollout)

    async def load(self, rollout_id: str) -> StoredRollout | None:
        """The rollout without its pictures' bytes; None when there is none. Raises StoreError."""

        def read(connection: Connection) -> StoredRollout | None:
            row = connection.execute(_ROLLOUT, {"rollout_id": rollout_id}).first()
            return None if row is None else from_row(row)

        return await self._read(read)

    async def blob(self, sha256: str) -> bytes | None:
        """A picture's PNG bytes; None when there is none. Raises StoreError."""

        def read(connection: Connection) -> bytes | None:
            data: bytes | None = connection.execute(_BLOB, {"sha256": sha256}).scalar()
            return data

        return await self._read(read)

    async def recent(self, limit: int = 50, *, environment: str | None = None) -> list[StoredRollout]:
        """The newest `limit` rollouts first, of one environment or of all, `events` left empty. Raises StoreError."""
        if limit < 0:
            raise StoreError(f"recent() was asked for {limit} rollouts; the limit is 0 or more.")

        def read(connection: Connection) -> list[StoredRollout]:
            if environment is None:
                rows = connection.execute(_RECENT, {"limit": limit})
            else:
                rows = connection.execute(_RECENT_OF, {"limit": limit, "environment": environment})
            return [from_row((*row, b""), with_events=False) for row in rows]

        return await self._read(read)

    def coordinator(self, clock: Clock) -> SqliteCoordinator | None:
        """Tickets in the same file, each call a holder of its own; None in memory. Close it before the store."""
        return None if self._in_memory else SqliteCoordinator(self._database, clock)

    async def check(self) -> StoreCheck:
        """Reads everything: SQLite's integrity check, each rollout, each picture's hash. Slow on a large store."""
        return await self._read(self._checked)

    async def close(self) -> None:
        """Writes what is waiting, moves the log into the file and lets go of it. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(self._readers, self._finish)
        self._readers.shutdown(wait=False)

    def _finish(self) -> None:
        self._writer.stop()
        self._forget_connection()
        with self._turn:
            self._database.close()

    def _open(self) -> None:
        if self._closed:
            raise StoreError(f"the store {self.place} is closed.", hint="Open it again with open_store().")

    async def _read(self, reader: Callable[[Connection], T]) -> T:
        self._open()

        def run() -> T:
            try:
                with self._turn, self._database.readers.connect() as connection:
                    return reader(connection)
            except StoreError:
                raise
            except Exception as fault:
                raise explain(fault, self.place, "read") from fault

        return await asyncio.get_running_loop().run_in_executor(self._readers, run)

    # What follows runs in the writer's thread.

    def _commit(self, rollouts: Sequence[StoredRollout]) -> Sequence[Outcome]:
        """Writes these rollouts; one outcome for each, None for kept."""
        outcomes: list[Outcome] = [None] * len(rollouts)
        rows: list[tuple[int, Row]] = []
        size = 0
        for index, rollout in enumerate(rollouts):
            try:
                row = to_row(rollout)
            except StoreError as refusal:
                outcomes[index] = refusal
            else:
                rows.append((index, row))
                size += row.size
            if size > LARGEST_TRANSACTION_BYTES or index == len(rollouts) - 1:
                for place, outcome in self._written(rows):
                    outcomes[place] = outcome
                rows, size = [], 0
        return outcomes

    def _written(self, rows: Sequence[tuple[int, Row]]) -> list[tuple[int, Outcome]]:
        if not rows:
            return []
        try:
            return self._transaction(rows)
        except StoreError as refusal:
            return [(index, refusal) for index, _ in rows]
        except (SQLAlchemyError, sqlite3.Error, OSError, OverflowError, MemoryError) as fault:
            self._forget_connection()
            if len(rows) > 1 and not _busy(fault):
                # One of them may be what is too large for the disk: each gets its own answer.
                return [outcome for row in rows for outcome in self._written([row])]
            error = explain(fault, self.place, "write")
            error.__cause__ = fault
            return [(index, error) for index, _ in rows]

    def _transaction(self, rows: Sequence[tuple[int, Row]]) -> list[tuple[int, Outcome]]:
        self._database.same_file()
        if self._connection is None:
            self._connection = self._database.writer.connect()
        connection = self._connection
        refused: dict[int, StoreError] = {}
        with self._turn, self._database.writing, connection.begin():
            for index, row in rows:
                lacking = [name for name in row.lacking if not connection.execute(_BLOB, {"sha256": name}).first()]
                if lacking:
                    refused[index] = _lacks(row, lacking)
            wanted = [(index, row) for index, row in rows if index not in refused]
            if wanted:
                result = connection.exec_driver_sql(_INSERT_ROLLOUT, [row.values for _, row in wanted])
                if result.rowcount != len(wanted):  # some id was there already: with the same content?
                    for index, row in wanted:
                        stored = connection.execute(_ROLLOUT, {"rollout_id": row.rollout_id}).one()
                        columns = differing(stored, row.values)
                        if columns:
                            refused[index] = _other(row, columns)
            blobs = [blob for index, row in wanted if index not in refused for blob in row.blobs]
            if blobs:
                connection.exec_driver_sql(_INSERT_BLOB, blobs)
        return [(index, refused.get(index)) for index, _ in rows]

    def _forget_connection(self) -> None:
        """After a fault the next write begins on a new connection."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with self._turn:
            try:
                connection.close()
            except SQLAlchemyError:
                connection.invalidate()

    def _checked(self, connection: Connection) -> StoreCheck:
        findings = [str(line) for line in connection.exec_driver_sql("PRAGMA integrity_check").scalars()]
        listed = func.json_each(ROLLOUTS.c.blob_hashes).table_valued("value")
        missing = select(listed.c.value).select_from(ROLLOUTS).join(listed, true())
        missing = missing.where(listed.c.value.not_in(select(BLOBS.c.sha256))).distinct()
        damaged = []
        for row in connection.execute(select(*ROLLOUTS.columns)).yield_per(50):
            try:
                from_row(row)
            except StoreError as fault:
                damaged.append(str(fault.message))
        for name, data in connection.execute(select(BLOBS.c.sha256, BLOBS.c.bytes)).yield_per(50):
            if hashlib.sha256(data).hexdigest() != name:
                damaged.append(f"picture {name} has bytes with another SHA-256")
        return StoreCheck(
            rollouts=connection.execute(select(func.count()).select_from(ROLLOUTS)).scalar_one(),
            blobs=connection.execute(select(func.count()).select_from(BLOBS)).scalar_one(),
            size_bytes=self._database.size_bytes(),
            integrity=[line for line in findings if line != "ok"],
            missing_blobs=sorted(connection.execute(missing).scalars()),
            damaged=damaged,
        )


def _busy(fault: Exception) -> bool:
    name = getattr(getattr(fault, "orig", fault), "sqlite_errorname", "")
    return name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _lacks(row: Row, lacking: Sequence[str]) -> StoreError:
    return StoreError(
        f"rollout {row.rollout_id!r} was not kept: its events show {len(lacking)} picture(s), the first {lacking[0]}, "
        "whose bytes were neither given nor are in the store.",
        hint="Give the bytes in `blobs`.",
    )


def _other(row: Row, columns: Sequence[str]) -> StoreError:
    return StoreError(
        f"rollout {row.rollout_id!r} is in the store already with other content (it differs in {', '.join(columns)}); "
        "the stored one was left as it is.",
        hint="A rollout is written once: give the new one its own rollout_id.",
    )
