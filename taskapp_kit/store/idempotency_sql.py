"""Idempotency records in the table `idempotency_keys`, for all processes that use one database.

The unique index on `key` decides between two claims. Each step is one transaction and is correct with concurrent writers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import zlib
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from taskapp_kit.errors import Failure, StoreError
from taskapp_kit.records.protocols import Clock, IdempotencyRecord, StoredResult
from taskapp_kit.store.database import BatchThread, Driver, Job, SqlDatabase, SqlDialect, each_alone
from taskapp_kit.store.idempotency import CLAIM_TRIES, RECORD_SECONDS, LeasedIdempotencyStore
from taskapp_kit.store.rows import packed, unreadable

T = TypeVar("T")
log = logging.getLogger("taskapp_kit.store")

LEASE_SECONDS = 15.0
"""How long a lease lasts after its owner renewed it, in seconds."""
RENEW_SECONDS = 5.0
"""The interval at which an owner renews its leases, in seconds."""
PURGE_SECONDS = 3600.0
"""Expired records are removed at the first claim, and then at most once per this interval, in seconds."""
PURGED_AT_ONCE = 100
"""The maximum number of records that one transaction removes, so that other writes do not wait long."""


class IdempotencyRow(NamedTuple):
    """A row of `idempotency_keys`. Its columns are in the order of `IdempotencyStatements.by_id`."""

    rollout_id: str
    fingerprint: str
    created_at: float
    key: str | None
    key_label: str | None
    app: str | None
    settled_at: float | None
    lease_owner: str
    process: str | None
    lease_until: float
    answer_encoding: str | None
    failure: str | None
    answer: bytes | None


@dataclass(frozen=True, slots=True)
class SqlEntry:
    """A `StoredEntry` in SQL.

    Attributes:
        result: The result, or None if the rollout is running or the record has expired.
        alive: Whether the lease is valid or the owner's process is alive.
    """

    row: IdempotencyRow
    result: StoredResult | None
    alive: bool

    @property
    def ticket(self) -> IdempotencyRecord:
        """Return the claimed record."""
        return IdempotencyRecord(*self.row[:6])

    @property
    def owner(self) -> str:
        """Return the owner of the record."""
        return self.row.lease_owner

    @property
    def settled(self) -> bool:
        """Return whether the record has a result."""
        return self.row.settled_at is not None

    @property
    def freed(self) -> bool:
        """Return whether the record's key may be claimed again. True if the record never had a key."""
        return self.row.key is None


@dataclass(frozen=True, slots=True)
class IdempotencyStatements:
    """The statements in the database's dialect."""

    by_id: str
    by_key: str
    free_key: str
    insert: str
    settle: str
    release: str
    renew: str
    purge: str


_BY_ID = (
    "SELECT rollout_id, fingerprint, created_at, key, key_label, app, settled_at, lease_owner, process, lease_until, "
    "answer_encoding, failure, answer FROM idempotency_keys WHERE rollout_id = ?"
)
_ANY = IdempotencyStatements(
    by_id=_BY_ID,
    by_key=_BY_ID.replace("WHERE rollout_id", "WHERE key"),
    # Only if the record is unchanged since it was read, so it was not renewed or settled and still has its key.
    # NULL is compared as -1, because NULL equals nothing in SQL.
    free_key="UPDATE idempotency_keys SET key = NULL WHERE rollout_id = ? AND key = ? AND lease_until = ? "
    "AND COALESCE(settled_at, -1) = ?",
    insert="INSERT INTO idempotency_keys (rollout_id, fingerprint, created_at, key, key_label, app, lease_owner, process, "
    "lease_until) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
    # Each of these statements may run twice, if the reply to its commit was lost. The second run changes nothing.
    settle="UPDATE idempotency_keys SET settled_at = ?, failure = ?, answer_encoding = ?, answer = ?, "
    "key = CASE WHEN ? THEN NULL ELSE key END WHERE rollout_id = ? AND lease_owner = ? AND settled_at IS NULL",
    release="DELETE FROM idempotency_keys WHERE rollout_id = ? AND lease_owner = ? AND settled_at IS NULL",
    # All ids are one JSON parameter, because drivers limit the number of parameters.
    renew="UPDATE idempotency_keys SET lease_until = ? WHERE rollout_id IN ({each}) AND lease_owner = ? AND settled_at IS NULL",
    purge="DELETE FROM idempotency_keys WHERE rollout_id IN "
    "(SELECT rollout_id FROM idempotency_keys WHERE created_at <= ? OR created_at > ? LIMIT ?{skip_locked})",
)


@cache
def statements(dialect: SqlDialect) -> IdempotencyStatements:
    """Return the statements in the given dialect."""

    def spelled(statement: str) -> str:
        statement = statement.replace("{each}", dialect.each).replace("{skip_locked}", dialect.skip_locked)
        return statement.replace("?", dialect.mark)

    return IdempotencyStatements(**{name: spelled(statement) for name, statement in asdict(_ANY).items()})


class SqlIdempotencyStore(LeasedIdempotencyStore[SqlEntry]):
    """An `IdempotencyStore` in `database`. Use each object on one event loop. Several objects may share a database.

    `StoredResult.events` are not stored, because the table `rollouts` contains them.

    renew_seconds: The interval at which the leases of owned records are renewed.
    """

    def __init__(self, database: SqlDatabase, clock: Clock, *, renew_seconds: float = RENEW_SECONDS) -> None:
        super().__init__(
            clock, f"the store {database.place}", log, lease_seconds=LEASE_SECONDS, renew_seconds=renew_seconds
        )
        self._statements = statements(database.spelling)
        self._process = this_process()
        self._purged_at: float | None = None
        self._jobs: BatchThread[Job[Any]] = BatchThread(database, "taskapp-idempotency", each_alone)

    async def _put_if_absent(self, ticket: IdempotencyRecord, over: SqlEntry | None) -> SqlEntry | None:
        try:
            there = await self._do(partial(self._put, ticket=ticket, over=over), order=ticket.key or "")
        except asyncio.CancelledError:
            if not self._closed:  # the record may have been put, so the next job removes it
                self._do(partial(self._delete, rollout_id=ticket.rollout_id))
            raise
        if self._purged_at is None or self._clock.monotonic() - self._purged_at >= PURGE_SECONDS:
            self._purged_at = self._clock.monotonic()
            self._purge_some()
        return there

    async def _read(self, rollout_id: str) -> SqlEntry | None:
        return await self._do(
            lambda connection: self._entry(connection, self._statements.by_id, rollout_id), writes=False
        )

    async def _result(self, entry: SqlEntry) -> StoredResult:
        if entry.result is None:
            raise StoreError(f"Rollout {entry.row.rollout_id!r} has no result yet.", hint="Try again later.")
        return entry.result

    async def _is_alive(self, entry: SqlEntry) -> bool:
        return entry.alive

    def _write_result(self, ticket: IdempotencyRecord, settled: StoredResult, free_key: bool) -> asyncio.Future[None]:
        return self._jobs.submit(lambda: self._settling(settled, free_key))

    async def _remove(self, rollout_id: str) -> None:
        await self._do(partial(self._delete, rollout_id=rollout_id))

    async def _renew(self) -> None:
        if self._owned:
            await self._do(partial(self._lease, rollout_ids=list(self._owned), seconds=LEASE_SECONDS))

    async def _give_up(self, rollout_ids: list[str]) -> None:
        # End the leases, so that all processes immediately treat the rollouts as lost.
        await self._do(partial(self._lease, rollout_ids=rollout_ids, seconds=-LEASE_SECONDS))

    async def _close(self) -> None:
        await asyncio.to_thread(self._jobs.stop)

    def _do(self, job: Job[T], *, writes: bool = True, order: str | None = None) -> asyncio.Future[T]:
        """Queue a job and return a future for its result. The job continues if the caller is cancelled."""
        return asyncio.shield(self._jobs.submit(lambda: job, writes=writes, order=order))

    def _purge_some(self) -> None:
        """Remove some of the records that have expired or, due to a wrong clock, are from the future."""

        def then(purged: asyncio.Future[int]) -> None:
            if purged.cancelled() or self._closed:
                return
            if (error := purged.exception()) is not None:
                log.warning("expired idempotency records were not removed: %s", error)
            elif purged.result() == PURGED_AT_ONCE:
                self._purge_some()

        self._do(self._purge).add_done_callback(then)

    # The following methods run in the thread, inside a transaction.

    def _put(self, connection: Driver, *, ticket: IdempotencyRecord, over: SqlEntry | None) -> SqlEntry | None:
        if over is not None:
            seen = over.row
            settled_at = -1.0 if seen.settled_at is None else seen.settled_at
            connection.execute(self._statements.free_key, [seen.rollout_id, ticket.key, seen.lease_until, settled_at])
        # Put before reading, because the unique index accepts only one of two concurrent claims.
        values = (ticket.rollout_id, ticket.fingerprint, ticket.created_at, ticket.key, ticket.key_label, ticket.app)
        for _ in range(CLAIM_TRIES):
            lease_until = self._clock.now() + LEASE_SECONDS
            owner = (self.owner, self._process, lease_until)
            if connection.execute(self._statements.insert, [*values, *owner]).rowcount == 1:
                return None
            there = None if ticket.key is None else self._entry(connection, self._statements.by_key, ticket.key)
            if there is not None:
                return None if self._put_before(there.row, ticket) else there
            same_id = self._entry(connection, self._statements.by_id, ticket.rollout_id)
            if same_id is not None:
                if self._put_before(same_id.row, ticket):
                    return None
                raise self._duplicate(ticket.rollout_id)
            # the record has given up its key since it was read
        raise self._contended(ticket.rollout_id)

    def _put_before(self, row: IdempotencyRow, ticket: IdempotencyRecord) -> bool:
        """Return whether an earlier run of the same job wrote this claim. A job is repeated if its connection is lost."""
        written = (row.rollout_id, row.fingerprint, row.created_at, row.key, row.lease_owner, row.settled_at)
        return written == (ticket.rollout_id, ticket.fingerprint, ticket.created_at, ticket.key, self.owner, None)

    def _entry(self, connection: Driver, statement: str, name: str) -> SqlEntry | None:
        values: Any = connection.execute(statement, [name]).fetchone()
        if values is None:
            return None
        row = IdempotencyRow(*values)
        if row.settled_at is None:
            alive = self._lease_holds(row.lease_until) and not certainly_dead(row.process, self._process)
            return SqlEntry(row, None, alive)
        current = self._is_current(IdempotencyRecord(*row[:6]))
        return SqlEntry(row, result_of(row) if current else None, alive=False)

    def _settling(self, settled: StoredResult, free_key: bool) -> Job[None]:
        failure = None if settled.failure is None else json.dumps(asdict(settled.failure))
        encoding, answer = (None, None) if settled.answer is None else packed(settled.answer)

        def settle(connection: Driver) -> None:
            values = (self._clock.now(), failure, encoding, answer, free_key, settled.rollout_id, self.owner)
            connection.execute(self._statements.settle, values)

        return settle

    def _delete(self, connection: Driver, *, rollout_id: str) -> None:
        connection.execute(self._statements.release, [rollout_id, self.owner])

    def _lease(self, connection: Driver, *, rollout_ids: list[str], seconds: float) -> None:
        connection.execute(self._statements.renew, [self._clock.now() + seconds, json.dumps(rollout_ids), self.owner])

    def _purge(self, connection: Driver) -> int:
        now = self._clock.now()
        return connection.execute(
            self._statements.purge, [now - RECORD_SECONDS, now + RECORD_SECONDS, PURGED_AT_ONCE]
        ).rowcount


def result_of(row: IdempotencyRow) -> StoredResult:
    """Return the result in a settled row. Raises StoreError if the row cannot be read."""
    try:
        if row.failure is not None:
            return StoredResult(row.rollout_id, failure=Failure(**json.loads(row.failure)))
        if row.answer_encoding not in ("json", "zlib") or row.answer is None:
            raise ValueError(row.answer_encoding)
        compressed = row.answer_encoding == "zlib"
        return StoredResult(row.rollout_id, answer=zlib.decompress(row.answer) if compressed else row.answer)
    except (ValueError, TypeError, zlib.error) as fault:
        raise unreadable(f"The result of rollout {row.rollout_id!r}", fault) from fault


# -- processes: on Linux, /proc shows a process on the same host whether an owner is certainly dead. On other systems, and
# across hosts and containers, only the lease decides.


def this_process() -> str | None:
    """Identify this process as `host/boot/pid namespace/pid/start time`. The start time is in clock ticks since boot.

    Return None on systems without /proc.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = Path("/proc/self/ns/pid").readlink()
        _, started, _ = _stat(os.getpid())
        return f"{os.uname().nodename}/{boot}/{namespace}/{os.getpid()}/{started}"
    except (OSError, AttributeError, ValueError, IndexError):
        return None


def certainly_dead(process: str | None, observer: str | None) -> bool:
    """Return whether `process` has certainly ended, as seen by `observer` (`this_process()`). If unsure, return False."""
    if process is None or observer is None or process == observer:
        return False
    try:
        place, pid, started = process.rsplit("/", 2)
        if place != observer.rsplit("/", 2)[0]:
            return False  # another host, boot or container, whose numbers have no meaning here
        os.kill(int(pid), 0)  # sends no signal but asks the kernel, because /proc may hide other users' processes
        state, now_started, threads = _stat(int(pid))
    except ProcessLookupError:
        return True
    except (OSError, ValueError, IndexError, OverflowError):
        return False
    return now_started != started or (state in "ZX" and threads <= 1)


def _stat(pid: int) -> tuple[str, str, int]:
    """Return the state, the start time and the number of threads of a process: fields 3, 22 and 20 of stat in proc(5)."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    fields = text[text.rindex(")") + 2 :].split()  # the name in parentheses may contain spaces and parentheses
    return fields[0], fields[19], int(fields[17])
