"""The store in an SQL database, on which `sqlite.py` and `postgres.py` are based.

A `BatchThread` writes all waiting rollouts in one transaction. Reads run in two other threads with their own connections.
Therefore neither reads nor writes block the event loop, and a reader never waits for the writer.
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
"""How long a save waits for a locked database, in seconds.

A save waits longer than other calls, because the rollout may have cost money.
"""

_ROLLOUT = select(*ROLLOUTS.columns).where(ROLLOUTS.c.rollout_id == bindparam("rollout_id"))
_BLOB = select(BLOBS.c.bytes).where(BLOBS.c.sha256 == bindparam("sha256"))
_LISTED = [column for column in ROLLOUTS.columns if column.name != "events"]
_RECENT = select(*_LISTED).order_by(ROLLOUTS.c.created_at.desc(), ROLLOUTS.c.rollout_id).limit(bindparam("limit"))
_RECENT_OF = _RECENT.where(ROLLOUTS.c.environment == bindparam("environment"))

PRUNED_AT_ONCE = 200
"""The maximum number of rollouts that one transaction removes, so that saves do not wait long."""


@dataclass(frozen=True, slots=True)
class StoreCheck:
    """The findings of `check()`.

    Attributes:
        rollouts: The number of rollouts.
        blobs: The number of images.
        missing_blobs: The hashes of images that a rollout lists but the store does not contain.
        damaged: Messages about rollouts that cannot be read and images that do not match their hash.
        integrity: The findings of the database's own check.
        size_bytes: The size of the file and its write-ahead log, or of the tables, in bytes. 0 for a store in memory.
    """

    rollouts: int
    blobs: int
    size_bytes: int
    integrity: list[str] = field(default_factory=list)
    missing_blobs: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Return whether the check found no problems."""
        return not (self.integrity or self.missing_blobs or self.damaged)


class SqlStore:
    """A `Store` in an SQL database. There is a subclass for each kind of database.

    save_seconds: How long a save waits for a lock that another process or session holds, in seconds.
    """

    def __init__(self, database: SqlDatabase, *, save_seconds: float = SAVE_SECONDS) -> None:
        self._database = database
        self.place = database.place
        self._insert_rollout = _inserting(ROLLOUTS, database.spelling.mark)
        self._insert_blob = _inserting(BLOBS, database.spelling.mark)
        self._select_rollout = _selecting(ROLLOUTS, "rollout_id", database.spelling.mark)
        self._closed = False
        # Two threads, so that a slow read, such as a check or a list of a large store, does not block other reads.
        self._readers = ThreadPoolExecutor(2, thread_name_prefix="taskapp-store-reader")
        self._writer: BatchThread[Row] = BatchThread(
            database, "taskapp-store-writer", self._write_rows, size=lambda row: row.size, lock_seconds=save_seconds
        )

    async def save(self, rollout: StoredRollout) -> None:
        """Store the rollout. When this method returns, the rollout is on disk.

        Saving the same rollout again succeeds. If another process or session holds a lock, the save waits up to
        SAVE_SECONDS.

        Raises:
            StoreRefusal: A different rollout with the same id is stored, a value cannot be stored exactly, or the bytes of
                an image are neither passed nor stored. The message contains the field's name. Other rollouts are not
                affected.
            StoreError: The store cannot be written.
        """
        self._open()
        # The rollout is encoded in the writer's thread, because encoding a large rollout would block the event loop. All
        # waiting rows share one flush of the disk (group commit). Without it, waiting for the disk would be too slow.
        await self._writer.submit(partial(to_row, rollout))

    async def load(self, rollout_id: str) -> StoredRollout | None:
        """Return the rollout without the bytes of its images, or None if it is not stored. Raises StoreError on failure."""

        def read(connection: Connection) -> StoredRollout | None:
            row = connection.execute(_ROLLOUT, {"rollout_id": rollout_id}).first()
            return None if row is None else from_row(row)

        return await self._read(read)

    async def blob(self, sha256: str) -> bytes | None:
        """Return an image's PNG bytes, or None if the image is not stored. Raises StoreError if the store cannot be read."""

        def read(connection: Connection) -> bytes | None:
            data: bytes | None = connection.execute(_BLOB, {"sha256": sha256}).scalar()
            return data

        return await self._read(read)

    async def recent(self, limit: int = 50, *, environment: str | None = None) -> list[StoredRollout]:
        """Return the newest `limit` rollouts of one environment or of all environments. Their `events` are empty.

        Raises StoreError if the store cannot be read.
        """
        if limit < 0:
            raise StoreError(f"`limit` of recent() must be at least 0, not {limit}.")

        def read(connection: Connection) -> list[StoredRollout]:
            if environment is None:
                rows = connection.execute(_RECENT, {"limit": limit})
            else:
                rows = connection.execute(_RECENT_OF, {"limit": limit, "environment": environment})
            # Events are not read, because they are the largest part of a row and a list does not show them.
            return [from_row((*row, b""), with_events=False) for row in rows]

        return await self._read(read)

    async def query(self, wanted: RolloutQuery) -> list[RolloutRow]:
        """Return the matching rollouts, newest first. If times are equal, sort by descending id.

        Raises StoreError if the store cannot be read.
        """
        if wanted.limit < 1:
            raise StoreError(f"`limit` of query() must be at least 1, not {wanted.limit}.")
        statement = matching(SUMMARY, wanted)

        def read(connection: Connection) -> list[RolloutRow]:
            return [RolloutRow(**dict(zip(QUERIED, row, strict=True))) for row in connection.execute(statement)]

        return await self._read(read)

    async def listed(self, wanted: RolloutQuery, order: RowOrder = "newest") -> list[RolloutRow]:
        """Return the first `wanted.limit` matching rollouts in the given order, with their scores.

        Raises StoreError if the store cannot be read.
        """
        statement = ordered_rows(wanted, order)

        return await self._read(lambda connection: [source_row(*row) for row in connection.execute(statement)])

    async def save_scores(self, scores: Sequence[StoredScores]) -> None:
        """Store later scores of rollouts. They may replace a failure, but not earlier scores of the same version.

        Raises StoreRefusal if a rollout already has scores of this version, and StoreError if the store cannot be written.
        """
        rows = [scores_values(item) for item in scores]
        # This does not run in the writer's thread, because rescoring writes thousands of rows, and saves would wait.
        await self._write(lambda connection: write_scores(connection, rows))

    async def scores(self, scorer: str) -> dict[str, StoredScores]:
        """Return the scores of a version by rollout id. Their field `private` is empty. Raises StoreError on failure."""
        return await self._read(lambda connection: read_scores(connection, scorer))

    async def scores_of(self, rollout_id: str, scorer: str) -> StoredScores | None:
        """Return the scores of one rollout, or None if the version has not scored it. Raises StoreError on failure."""
        return await self._read(lambda connection: read_one(connection, rollout_id, scorer))

    async def scorers(self) -> list[ScorerVersion]:
        """Return the scorer versions that have scores, newest first. Raises StoreError if the store cannot be read."""
        return await self._read(read_scorers)

    async def annotate(self, annotations: Sequence[Annotation]) -> None:
        """Store people's scores. They replace earlier scores of the same rollout, criterion and annotator.

        Raises StoreError if the store cannot be written.
        """
        await self._write(lambda connection: write_annotations(connection, annotations))

    async def annotations(
        self, *, rollout_id: str | None = None, app: str | None = None, key_label: str | None = None
    ) -> list[Annotation]:
        """Return people's scores of the matching rollouts, oldest first. Raises StoreError if the store cannot be read."""
        wanted = {"rollout_id": rollout_id, "app": app, "key_label": key_label}
        return await self._read(lambda connection: read_annotations(connection, wanted))

    async def prune(self, app: str, *, before: float | None = None, keep: int | None = None) -> int:
        """Remove old rollouts of `app` and return their number.

        Rollouts with an idempotency record younger than RECORD_SECONDS are not removed. Older records are removed, and also
        images that no remaining rollout shows. The transactions are small, so that saves can run between them.

        Args:
            app: The app's name.
            before: Remove rollouts that began before this Unix time.
            keep: Keep this number of the newest rollouts, and remove only older rollouts.

        Raises:
            StoreError: The store cannot be written.
        """
        doomed = await self._doomed(app, before, keep)
        removal = delete(ROLLOUTS).where(
            ROLLOUTS.c.rollout_id.in_(select(ROLLOUTS.c.rollout_id).where(*doomed).limit(PRUNED_AT_ONCE))
        )
        # Use short transactions, because SQLite has one writer, and in Postgres saves wait for rows that are being removed.
        removed = 0
        while True:
            gone = await self._write(lambda connection: connection.execute(removal).rowcount)
            removed += gone
            if gone < PRUNED_AT_ONCE:
                break
        while await self._write(lambda connection: connection.execute(_expired_keys()).rowcount) == PRUNED_AT_ONCE:
            pass
        if removed:
            # Remove images at the end, because several rollouts may show the same image.
            await self._write(self._prune_blobs)
            await self._write(prune_scores)
        return removed

    async def prunable(self, app: str, *, before: float | None = None, keep: int | None = None) -> int:
        """Return the number of rollouts that `prune` would remove now. Raises StoreError if the store cannot be read."""
        statement = select(func.count()).select_from(ROLLOUTS).where(*await self._doomed(app, before, keep))
        return await self._read(lambda connection: int(connection.execute(statement).scalar_one()))

    async def _doomed(self, app: str, before: float | None, keep: int | None) -> list[ColumnElement[bool]]:
        """Return the conditions that select the rollouts to remove. Rollouts that are stored from now on never match them."""
        if keep is not None and keep < 1:
            raise StoreError(f"prune() must keep at least 1 rollout, not {keep}.")
        # Exclude rollouts whose request may be repeated with its key, because the response is read from the rollout.
        held = select(IDEMPOTENCY_KEYS.c.rollout_id).where(IDEMPOTENCY_KEYS.c.created_at > time.time() - RECORD_SECONDS)
        doomed = [ROLLOUTS.c.app == app, ROLLOUTS.c.rollout_id.not_in(held)]
        if before is not None:
            doomed.append(ROLLOUTS.c.created_at < before)
        if keep is not None:
            place = (ROLLOUTS.c.created_at, ROLLOUTS.c.rollout_id)
            last = select(*place).where(ROLLOUTS.c.app == app).order_by(*NEWEST_FIRST).offset(keep - 1).limit(1)
            oldest_kept = await self._read(lambda connection: connection.execute(last).first())
            # None if there are fewer rollouts than `keep`.
            doomed.append(false() if oldest_kept is None else tuple_(*place) < tuple_(*oldest_kept))
        return doomed

    async def apps(self) -> list[str]:
        """Return the names of the apps whose rollouts are stored. Raises StoreError if the store cannot be read."""
        statement = select(ROLLOUTS.c.app).distinct().order_by(ROLLOUTS.c.app)
        return await self._read(lambda connection: [str(name) for name in connection.execute(statement).scalars()])

    async def usage(self) -> StoreUsage:
        """Return the used space by environment and by kind of data. Slow for a large store. Raises StoreError on failure."""
        return await self._read(partial(usage_of, self._database))

    def coordinator(self, clock: Clock) -> SqlIdempotencyStore | None:
        """Create an idempotency store in the same database. Close it before this store is closed."""
        return SqlIdempotencyStore(self._database, clock)

    async def check(self) -> StoreCheck:
        """Run the database's own check, read every rollout, and check every image's hash. Slow for a large store."""
        return await self._read(self._checked)

    async def close(self) -> None:
        """Write the waiting rollouts and close the database. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        # Writing the waiting rollouts may take seconds.
        await asyncio.get_running_loop().run_in_executor(self._readers, self._finish)
        self._readers.shutdown(wait=False)

    def _finish(self) -> None:
        # Stop the writer first, because it still writes waiting rollouts. After that, no connection is in use.
        self._writer.stop()
        with self._database.turn:
            self._database.close()

    def _open(self) -> None:
        if self._closed:
            raise StoreError(f"The store {self.place} is closed.", hint="Open it again with open_store().")

    def _prune_blobs(self, connection: Connection) -> int:
        """Remove the images that no rollout lists, and return their number. Saves of rollouts with images have to wait."""
        self._database.hold_pictures(connection)
        return connection.execute(self._blob_removal()).rowcount

    def _blob_removal(self) -> Delete:
        listed = self._database.listed_pictures()
        used = select(listed.c.value).select_from(ROLLOUTS).join(listed, true()).where(ROLLOUTS.c.blob_hashes != "[]")
        # NOT IN would be slow, because Postgres would compare each image with each of many hashes.
        return delete(BLOBS).where(BLOBS.c.sha256.in_(except_(select(BLOBS.c.sha256), used)))

    async def _write(self, work: Callable[[Connection], int]) -> int:
        """Call `work` in a separate transaction and return its result. Raises StoreError if the store cannot be written."""
        self._open()

        def once() -> int:
            # SQLite would write to a deleted file without raising an error.
            self._database.same_file()
            with self._database.turn, self._database.writing, self._database.writer.begin() as connection:
                return work(connection)

        return await asyncio.get_running_loop().run_in_executor(self._readers, self._persisted, once, "write")

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
            # Do not raise `from fault`, because a driver's message may quote stored data. The database sets a safe cause.
            raise error from error.__cause__

    # The following methods run in the writer's thread.

    def _write_rows(self, connection: Driver, rows: Sequence[Row]) -> list[StoreRefusal | None]:
        """Write the rows. A row may already exist with the same content. Return one element per row: its error, or None."""
        refused: dict[int, StoreRefusal] = {}
        # One query for all rows.
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
            # Both drivers count only inserted rows, not rows that ON CONFLICT skips.
            if cursor.rowcount != len(accepted):  # some ids already exist, so compare their content
                for index, row in accepted:
                    values = connection.execute(self._select_rollout, (row.rollout_id,)).fetchone()
                    assert values is not None, "it was inserted or existed"
                    columns = differing(values, row.values)
                    if columns:
                        refused[index] = _other(row, columns)
        # All servers use the same order, so that servers that write the same images do not deadlock.
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
        # Read in parts, because the events of a large store do not fit into memory.
        for row in connection.execute(select(*ROLLOUTS.columns)).yield_per(50):
            try:
                from_row(row)
            except StoreError as fault:
                damaged.append(str(fault.message))
        for name, data in connection.execute(select(BLOBS.c.sha256, BLOBS.c.bytes)).yield_per(50):
            if hashlib.sha256(data).hexdigest() != name:
                damaged.append(f"the SHA-256 of the image {name} does not match its bytes")
        return StoreCheck(
            rollouts=connection.execute(select(func.count()).select_from(ROLLOUTS)).scalar_one(),
            blobs=connection.execute(select(func.count()).select_from(BLOBS)).scalar_one(),
            size_bytes=self._database.size_bytes(connection),
            integrity=findings,
            missing_blobs=sorted(connection.execute(missing).scalars()),
            damaged=damaged,
        )


def _expired_keys() -> Delete:
    """Return a statement that removes some of the expired idempotency records."""
    expired = select(IDEMPOTENCY_KEYS.c.rollout_id).where(IDEMPOTENCY_KEYS.c.created_at <= time.time() - RECORD_SECONDS)
    return delete(IDEMPOTENCY_KEYS).where(IDEMPOTENCY_KEYS.c.rollout_id.in_(expired.limit(PRUNED_AT_ONCE)))


def _inserting(table: Table, mark: str) -> str:
    """Return an INSERT statement that the driver executes directly, because SQLAlchemy would process each value again."""
    names = _names(table)
    marks = ", ".join(mark for _ in table.columns)
    return f"INSERT INTO {table.name} ({names}) VALUES ({marks}) ON CONFLICT DO NOTHING"  # noqa: S608 - our own names


def _selecting(table: Table, key: str, mark: str) -> str:
    return f"SELECT {_names(table)} FROM {table.name} WHERE {key} = {mark}"  # noqa: S608 - our own names


def _names(table: Table) -> str:
    return ", ".join(column.name for column in table.columns)


def _lacks(row: Row, lacking: Sequence[str]) -> StoreRefusal:
    return StoreRefusal(
        f"Rollout {row.rollout_id!r} was not stored, because the bytes of {len(lacking)} image(s) in its events, such as "
        f"{lacking[0]}, are neither in `blobs` nor in the store.",
        hint="Pass the bytes of the images in `blobs`.",
    )


def _other(row: Row, columns: Sequence[str]) -> StoreRefusal:
    return StoreRefusal(
        f"A different rollout {row.rollout_id!r} is already in the store. It differs in {', '.join(columns)}. "
        "The stored rollout was not changed.",
        hint="Use a different rollout_id for the new rollout, because stored rollouts never change.",
    )
