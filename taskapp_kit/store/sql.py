"""The store in an SQL database; `sqlite.py` and `postgres.py` choose the database.

Writes go through a `BatchThread`, one transaction for all waiting rollouts. Reads run in two threads on their own connections,
so neither blocks the event loop, and a reader never waits for the writer.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Table,
    bindparam,
    delete,
    except_,
    false,
    func,
    select,
    true,
    tuple_,
)

from taskapp_kit.errors import StoreError, StoreRefusal
from taskapp_kit.records.protocols import (
    Annotation,
    Clock,
    RolloutQuery,
    RolloutRow,
    RowOrder,
    ScorerVersion,
    StoredRollout,
    StoredScores,
)
from taskapp_kit.store.database import BatchThread, Driver, SqlDatabase
from taskapp_kit.store.idempotency import RECORD_SECONDS
from taskapp_kit.store.idempotency_sql import SqlIdempotencyStore
from taskapp_kit.store.queries import NEWEST_FIRST, QUERIED, SUMMARY, matching, ordered_rows
from taskapp_kit.store.rows import Row, differing, from_row, source_row, to_row
from taskapp_kit.store.schema import BLOBS, IDEMPOTENCY_KEYS, ROLLOUTS
from taskapp_kit.store.scores import (
    prune_annotations,
    prune_scores,
    read_annotations,
    read_one,
    read_scorers,
    read_scores,
    scores_values,
    write_annotations,
    write_scores,
)
from taskapp_kit.store.usage import StoreUsage, usage_of

T = TypeVar("T")

SAVE_SECONDS = 60.0
"""How long a save waits for a locked database: longer than other calls, because the rollout was already paid for."""

_ROLLOUT = select(*ROLLOUTS.columns).where(ROLLOUTS.c.rollout_id == bindparam("rollout_id"))
_BLOB = select(BLOBS.c.bytes).where(BLOBS.c.sha256 == bindparam("sha256"))
_LISTED = [column for column in ROLLOUTS.columns if column.name != "events"]
_RECENT = select(*_LISTED).order_by(ROLLOUTS.c.created_at.desc(), ROLLOUTS.c.rollout_id).limit(bindparam("limit"))
_RECENT_OF = _RECENT.where(ROLLOUTS.c.environment == bindparam("environment"))

PRUNED_AT_ONCE = 200
"""The limit on rollouts removed in one transaction, so that no save waits long for it."""


@dataclass(frozen=True, slots=True)
class StoreCheck:
    """The findings of `check()`. `integrity`: the database's own findings, empty when it has none. `missing_blobs`: hashes of
    pictures that a rollout lists and the store lacks. `damaged`: rollouts and pictures whose content cannot be read
    or does not match its hash. `size_bytes`: of the file and its write-ahead log, or of the tables; 0 in memory."""

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


class SqlStore:
    """A `Store` in a database. Each kind has a class of its own, which says how it is opened.

    save_seconds: how long a save waits for a lock that another process or session holds.
    """

    def __init__(self, database: SqlDatabase, *, save_seconds: float = SAVE_SECONDS) -> None:
        self._database = database
        self.place = database.place
        self._insert_rollout = _inserting(ROLLOUTS, database.spelling.mark)
        self._insert_blob = _inserting(BLOBS, database.spelling.mark)
        self._select_rollout = _selecting(ROLLOUTS, "rollout_id", database.spelling.mark)
        self._closed = False
        # Two, so that a slow read (a check, a list of a large store) does not stop the others.
        self._readers = ThreadPoolExecutor(2, thread_name_prefix="taskapp-store-reader")
        self._writer: BatchThread[Row] = BatchThread(
            database, "taskapp-store-writer", self._write_rows, size=lambda row: row.size, lock_seconds=save_seconds
        )

    async def save(self, rollout: StoredRollout) -> None:
        """Stores the rollout. It is on disk when this returns.

        Saving the same rollout again is allowed; another one with the same id is refused. So are values that would not be
        read back equal, and pictures whose bytes are neither given nor already stored. A refusal is a StoreRefusal that
        names the field, and affects no other rollout. While another process or session holds a lock, the save waits up to
        SAVE_SECONDS. Raises StoreError.
        """
        self._open()
        # Encoded in the writer's thread: a large rollout would hold the event loop up. All waiting rows share one
        # flush of the disk (group commit), so that "returned means stored" is affordable.
        await self._writer.submit(partial(to_row, rollout))

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
            # Events are most of a row, and a list does not show them.
            return [from_row((*row, b""), with_events=False) for row in rows]

        return await self._read(read)

    async def query(self, wanted: RolloutQuery) -> list[RolloutRow]:
        """The matching rollouts, newest first, at equal times by rollout_id descending. Raises StoreError."""
        if wanted.limit < 1:
            raise StoreError(f"query() was asked for {wanted.limit} rollouts; the limit is 1 or more.")
        statement = matching(SUMMARY, wanted)

        def read(connection: Connection) -> list[RolloutRow]:
            return [RolloutRow(**dict(zip(QUERIED, row, strict=True))) for row in connection.execute(statement)]

        return await self._read(read)

    async def listed(self, wanted: RolloutQuery, order: RowOrder = "newest") -> list[RolloutRow]:
        """The first `wanted.limit` of the matching rollouts in that order, with their scores. Raises StoreError."""
        statement = ordered_rows(wanted, order)

        def read(connection: Connection) -> list[RolloutRow]:
            return [source_row(*row) for row in connection.execute(statement)]

        return await self._read(read)

    async def save_scores(self, scores: Sequence[StoredScores]) -> None:
        """Stores later scores of rollouts; a failure is replaced, scores never are. Raises StoreRefusal, StoreError."""
        self._open()
        rows = [scores_values(item) for item in scores]
        # Not in the writer's thread: scoring again writes thousands of rows, and rollouts would wait for them.
        await asyncio.get_running_loop().run_in_executor(
            self._readers, self._changed, lambda connection: write_scores(connection, rows)
        )

    async def scores(self, scorer: str) -> dict[str, StoredScores]:
        """The scores of a version by rollout id, `private` left empty. Raises StoreError."""
        return await self._read(lambda connection: read_scores(connection, scorer))

    async def scores_of(self, rollout_id: str, scorer: str) -> StoredScores | None:
        """The scores of one rollout; None when there are none. Raises StoreError."""
        return await self._read(lambda connection: read_one(connection, rollout_id, scorer))

    async def scorers(self) -> list[ScorerVersion]:
        """The versions that have scores, the newest first. Raises StoreError."""
        return await self._read(read_scorers)

    async def annotate(self, annotations: Sequence[Annotation]) -> None:
        """Stores people's scores, in place of those of the same rollout, criterion and annotator. Raises StoreError."""
        self._open()
        await asyncio.get_running_loop().run_in_executor(
            self._readers, self._changed, lambda connection: write_annotations(connection, annotations)
        )

    async def annotations(
        self, *, rollout_id: str | None = None, app: str | None = None, key_label: str | None = None
    ) -> list[Annotation]:
        """People's scores of the rollouts that match, oldest first. Raises StoreError."""
        wanted = {"rollout_id": rollout_id, "app": app, "key_label": key_label}
        return await self._read(lambda connection: read_annotations(connection, wanted))

    async def prune(self, app: str, *, before: float | None = None, keep: int | None = None) -> int:
        """Removes rollouts of `app` that began before `before` (unix seconds), or all but the newest `keep`.

        Rollouts with an idempotency record younger than RECORD_SECONDS, and pictures of remaining rollouts, are not
        removed; older records are. Works in small transactions, so that saves can run meanwhile. Returns the number of
        removed rollouts. Raises StoreError.
        """
        doomed = await self._doomed(app, before, keep)
        removal = delete(ROLLOUTS).where(
            ROLLOUTS.c.rollout_id.in_(select(ROLLOUTS.c.rollout_id).where(*doomed).limit(PRUNED_AT_ONCE))
        )
        # In short transactions: SQLite has one writer, and in Postgres a save waits for rows that are being removed.
        loop, removed = asyncio.get_running_loop(), 0
        while True:
            gone = await loop.run_in_executor(self._readers, self._removed, removal)
            removed += gone
            if gone < PRUNED_AT_ONCE:
                break
        while await loop.run_in_executor(self._readers, self._removed, _expired_keys()) == PRUNED_AT_ONCE:
            pass
        if removed:
            # At the end, because several rollouts may show one picture.
            await loop.run_in_executor(self._readers, self._prune_blobs)
            await loop.run_in_executor(self._readers, self._changed, prune_scores)
            await loop.run_in_executor(self._readers, self._changed, prune_annotations)
        return removed

    async def prunable(self, app: str, *, before: float | None = None, keep: int | None = None) -> int:
        """The number of rollouts that `prune` would remove now. Raises StoreError."""
        statement = select(func.count()).select_from(ROLLOUTS).where(*await self._doomed(app, before, keep))
        return await self._read(lambda connection: int(connection.execute(statement).scalar_one()))

    async def _doomed(self, app: str, before: float | None, keep: int | None) -> list[ColumnElement[bool]]:
        """The conditions of `prune`. Rollouts that are stored from now on are newer than all that these match."""
        if keep is not None and keep < 1:
            raise StoreError(f"prune() was asked to keep {keep} rollouts; it keeps 1 or more.")
        # A request that is repeated under its key is answered with this rollout, which then has to be there.
        held = select(IDEMPOTENCY_KEYS.c.rollout_id).where(IDEMPOTENCY_KEYS.c.created_at > time.time() - RECORD_SECONDS)
        doomed = [ROLLOUTS.c.app == app, ROLLOUTS.c.rollout_id.not_in(held)]
        if before is not None:
            doomed.append(ROLLOUTS.c.created_at < before)
        if keep is not None:
            place = (ROLLOUTS.c.created_at, ROLLOUTS.c.rollout_id)
            last = select(*place).where(ROLLOUTS.c.app == app).order_by(*NEWEST_FIRST).offset(keep - 1).limit(1)
            oldest_kept = await self._read(lambda connection: connection.execute(last).first())
            # None: there are fewer than `keep`.
            doomed.append(false() if oldest_kept is None else tuple_(*place) < tuple_(*oldest_kept))
        return doomed

    async def apps(self) -> list[str]:
        """The names of the apps whose rollouts are stored. Raises StoreError."""
        statement = select(ROLLOUTS.c.app).distinct().order_by(ROLLOUTS.c.app)
        return await self._read(lambda connection: [str(name) for name in connection.execute(statement).scalars()])

    async def usage(self) -> StoreUsage:
        """What takes space, by environment and by kind. Reads every row: slow on a large store. Raises StoreError."""
        return await self._read(partial(usage_of, self._database))

    def coordinator(self, clock: Clock) -> SqlIdempotencyStore | None:
        """Creates an idempotency store in the same database, with an owner of its own. Close it before the store."""
        return SqlIdempotencyStore(self._database, clock)

    async def check(self) -> StoreCheck:
        """Checks everything: the database's own report, each rollout, each picture's hash. Slow on a large store."""
        return await self._read(self._checked)

    async def close(self) -> None:
        """Writes the waiting rollouts and closes the database. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        # What waits may take seconds to write.
        await asyncio.get_running_loop().run_in_executor(self._readers, self._finish)
        self._readers.shutdown(wait=False)

    def _finish(self) -> None:
        # First, because it still writes what waits; afterwards no connection is in use.
        self._writer.stop()
        with self._database.turn:
            self._database.close()

    def _open(self) -> None:
        if self._closed:
            raise StoreError(f"the store {self.place} is closed.", hint="Open it again with open_store().")

    def _removed(self, removal: Delete) -> int:
        return self._changed(lambda connection: connection.execute(removal).rowcount)

    def _prune_blobs(self) -> int:
        """Removes the pictures that no rollout lists any more. Saves of rollouts with pictures wait meanwhile."""
        removal = self._blob_removal()

        def remove(connection: Connection) -> int:
            self._database.hold_pictures(connection)
            return connection.execute(removal).rowcount

        return self._changed(remove)

    def _blob_removal(self) -> Delete:
        listed = self._database.listed_pictures()
        used = select(listed.c.value).select_from(ROLLOUTS).join(listed, true()).where(ROLLOUTS.c.blob_hashes != "[]")
        # Not NOT IN: for many hashes, Postgres would compare each picture with each of them.
        return delete(BLOBS).where(BLOBS.c.sha256.in_(except_(select(BLOBS.c.sha256), used)))

    def _changed(self, work: Callable[[Connection], int]) -> int:
        """Calls `work` in a transaction of its own and returns its result. Raises StoreError."""

        def once() -> int:
            # SQLite goes on writing to a deleted file without an error.
            self._database.same_file()
            with self._database.turn, self._database.writing, self._database.writer.begin() as connection:
                return work(connection)

        return self._persisted(once, "write")

    async def _read(self, reader: Callable[[Connection], T]) -> T:
        self._open()

        def once() -> T:
            with self._database.turn, self._database.readers.connect() as connection:
                return reader(connection)

        return await asyncio.get_running_loop().run_in_executor(self._readers, self._persisted, once, "read")

    def _persisted(self, once: Callable[[], T], doing: str) -> T:
        try:
            return self._database.persist(once)
        except StoreError:
            raise
        except Exception as fault:
            error = self._database.explain(fault, doing)
            # Not `from fault`: a driver's text may quote stored data. The database sets a cause that is safe.
            raise error from error.__cause__

    # What follows runs in the writer's thread.

    def _write_rows(self, connection: Driver, rows: Sequence[Row]) -> list[StoreRefusal | None]:
        """Writes the rows; they may be there already, with the same content. Returns one outcome for each."""
        refused: dict[int, StoreRefusal] = {}
        # One query for all rows, not one for each.
        if lacking := {name for row in rows for name in row.lacking}:
            marks = ", ".join(self._database.spelling.mark for _ in lacking)
            stored = connection.execute(f"SELECT sha256 FROM blobs WHERE sha256 IN ({marks})", sorted(lacking))  # noqa: S608 - marks
            present = {name for (name,) in stored.fetchall()}
            for index, row in enumerate(rows):
                missing = [name for name in row.lacking if name not in present]
                if missing:
                    refused[index] = _lacks(row, missing)
        accepted = [(index, row) for index, row in enumerate(rows) if index not in refused]
        if accepted:
            cursor = connection.cursor()
            cursor.executemany(self._insert_rollout, [row.values for _, row in accepted])
            # Both drivers count the inserted rows; those that ON CONFLICT left out are not among them.
            if cursor.rowcount != len(accepted):  # some id was there already: with the same content?
                for index, row in accepted:
                    values = connection.execute(self._select_rollout, (row.rollout_id,)).fetchone()
                    assert values is not None, "it was inserted or there before"
                    columns = differing(values, row.values)
                    if columns:
                        refused[index] = _other(row, columns)
        # In one order everywhere, so that servers which write the same images do not deadlock.
        blobs = sorted(blob for index, row in accepted if index not in refused for blob in row.blobs)
        if blobs:
            connection.cursor().executemany(self._insert_blob, blobs)
        return [refused.get(index) for index in range(len(rows))]

    def _checked(self, connection: Connection) -> StoreCheck:
        findings = self._database.findings(connection)
        listed = self._database.listed_pictures()
        missing = select(listed.c.value).select_from(ROLLOUTS).join(listed, true())
        missing = missing.where(listed.c.value.not_in(select(BLOBS.c.sha256))).distinct()
        damaged = []
        # In parts: the events of a large store do not fit into memory.
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
            size_bytes=self._database.size_bytes(connection),
            integrity=findings,
            missing_blobs=sorted(connection.execute(missing).scalars()),
            damaged=damaged,
        )


def _expired_keys() -> Delete:
    """Removes some of the idempotency records that are expired."""
    expired = select(IDEMPOTENCY_KEYS.c.rollout_id).where(IDEMPOTENCY_KEYS.c.created_at <= time.time() - RECORD_SECONDS)
    return delete(IDEMPOTENCY_KEYS).where(IDEMPOTENCY_KEYS.c.rollout_id.in_(expired.limit(PRUNED_AT_ONCE)))


def _inserting(table: Table, mark: str) -> str:
    """A statement of the driver's own: SQLAlchemy's would look at each value of each row once more."""
    names = _names(table)
    marks = ", ".join(mark for _ in table.columns)
    return f"INSERT INTO {table.name} ({names}) VALUES ({marks}) ON CONFLICT DO NOTHING"  # noqa: S608 - our own names


def _selecting(table: Table, key: str, mark: str) -> str:
    return f"SELECT {_names(table)} FROM {table.name} WHERE {key} = {mark}"  # noqa: S608 - our own names


def _names(table: Table) -> str:
    return ", ".join(column.name for column in table.columns)


def _lacks(row: Row, lacking: Sequence[str]) -> StoreRefusal:
    return StoreRefusal(
        f"rollout {row.rollout_id!r} was not kept: its events show {len(lacking)} picture(s), the first {lacking[0]}, "
        "whose bytes were neither given nor are in the store.",
        hint="Give the bytes in `blobs`.",
    )


def _other(row: Row, columns: Sequence[str]) -> StoreRefusal:
    return StoreRefusal(
        f"rollout {row.rollout_id!r} is in the store already with other content (it differs in {', '.join(columns)}); "
        "the stored one was left as it is.",
        hint="A rollout is written once: give the new one its own rollout_id.",
    )
