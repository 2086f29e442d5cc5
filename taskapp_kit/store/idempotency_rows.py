"""What is said to the database about tickets, and what it answers: the rows of the table `tickets`."""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, NamedTuple

from taskapp_kit.contract.protocols import StoredResult
from taskapp_kit.errors import Failure, StoreError
from taskapp_kit.store.database import Driver, SqlDialect


class IdempotencyRow(NamedTuple):
    """A row of `tickets`, its columns in the order of `IdempotencyStatements.by_id`."""

    rollout_id: str
    fingerprint: str
    created_at: float
    key: str | None
    key_label: str | None
    app: str | None
    settled_at: float | None
    holder: str
    process: str | None
    lease_until: float
    answer_encoding: str | None
    failure: str | None
    answer: bytes | None


@dataclass(frozen=True, slots=True)
class IdempotencyStatements:
    """What is said to the database, in its own spelling."""

    by_id: str
    by_key: str
    free_key: str
    insert: str
    settle: str
    release: str
    renew: str
    purge: str


_BY_ID = (
    "SELECT rollout_id, fingerprint, created_at, key, key_label, app, settled_at, holder, process, lease_until, "
    "answer_encoding, failure, answer FROM tickets WHERE rollout_id = ?"
)
_ANY = IdempotencyStatements(
    by_id=_BY_ID,
    by_key=_BY_ID.replace("WHERE rollout_id", "WHERE key"),
    # Only from the one that was seen to be lost: it may have been renewed or settled, or the key taken, since.
    free_key="UPDATE tickets SET key = NULL WHERE rollout_id = ? AND key = ? AND lease_until = ? "
    "AND COALESCE(settled_at, -1) = ?",
    insert="INSERT INTO tickets (rollout_id, fingerprint, created_at, key, key_label, app, holder, process, lease_until) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
    settle="UPDATE tickets SET settled_at = ?, failure = ?, answer_encoding = ?, answer = ?, "
    "key = CASE WHEN ? THEN NULL ELSE key END WHERE rollout_id = ? AND holder = ? AND settled_at IS NULL",
    release="DELETE FROM tickets WHERE rollout_id = ? AND holder = ? AND settled_at IS NULL",
    renew="UPDATE tickets SET lease_until = ? WHERE rollout_id IN ({each}) AND holder = ? AND settled_at IS NULL",
    purge="DELETE FROM tickets WHERE rollout_id IN "
    "(SELECT rollout_id FROM tickets WHERE created_at <= ? OR created_at > ? LIMIT ?{skip_locked})",
)


@cache
def statements(spelling: SqlDialect) -> IdempotencyStatements:
    """The statements as `spelling` has them."""

    def spelled(statement: str) -> str:
        statement = statement.replace("{each}", spelling.each).replace("{skip_locked}", spelling.skip_locked)
        return statement.replace("?", spelling.mark)

    return IdempotencyStatements(**{name: spelled(statement) for name, statement in asdict(_ANY).items()})


def read_row(connection: Driver, statement: str, name: str) -> IdempotencyRow | None:
    """The row that `by_id` or `by_key` finds under this name; None when there is none."""
    values: Any = connection.execute(statement, [name]).fetchone()
    return None if values is None else IdempotencyRow(*values)


def settled_of(row: IdempotencyRow) -> StoredResult:
    """What `IdempotencyStatements.settle` wrote. Raises StoreError for a row that cannot be read."""
    try:
        if row.failure is not None:
            return StoredResult(row.rollout_id, failure=Failure(**json.loads(row.failure)))
        if row.answer_encoding not in ("json", "zlib") or row.answer is None:
            raise ValueError(row.answer_encoding)
        packed_here = row.answer_encoding == "zlib"
        return StoredResult(row.rollout_id, answer=zlib.decompress(row.answer) if packed_here else row.answer)
    except (ValueError, TypeError, zlib.error) as fault:
        raise StoreError(
            f"what came of rollout {row.rollout_id!r} is in the store but cannot be read: {type(fault).__name__}.",
            hint="The store is damaged; restore it from a copy.",
        ) from fault
