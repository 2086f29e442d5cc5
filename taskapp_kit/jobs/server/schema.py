"""The backend's tables, in a SQLite file that may also store rollouts, and their rows as objects.

`backend_jobs` has one row per job, with its request and its state. `backend_events` has the events, which are numbered
from 1 within their job, without gaps. `backend_rollouts` has one row per finished rollout. Its key contains the
rollout's place in the job, so a place is never counted twice. When a job goes back to a checkpoint, later rows stay in
the tables, marked with the number of the event that superseded them, and are not counted. `backend_env_keys` contains
only ciphertext. `backend_minted` has the organizations of keys that backends with this store created for themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    Index,
    Integer,
    MetaData,
    Row,
    String,
    Table,
    Text,
)

from taskapp_kit.jobs.server.engine import CurvePoint, Event
from taskapp_kit.store.migrations import Migration, applied_table, apply_migrations

QUEUED, RUNNING, SUCCEEDED, FAILED, CANCELLED = "queued", "running", "succeeded", "failed", "cancelled"
ENDED = (SUCCEEDED, FAILED, CANCELLED)

METADATA = MetaData()

JOBS = Table(
    "backend_jobs",
    METADATA,
    Column("job_id", String, primary_key=True),
    Column("org", String, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("status", String, nullable=False),
    Column("engine", String, nullable=False),
    Column("trainer_id", String, nullable=False),
    Column("model", String, nullable=False),
    Column("idempotency_key", String),
    Column("fingerprint", String, nullable=False),
    Column("document", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("metrics", Text, nullable=False),
    Column("results", Text, nullable=False),
    Column("total", Integer, nullable=False),
    Column("completed", Integer, nullable=False),
    Column("cancelling", Boolean, nullable=False),
    Column("final_reward", Double),
    Column("error", Text),
    Column("tags", Text, nullable=False, server_default="{}"),
    Index("backend_jobs_by_org", "org", "created_at"),
    Index("backend_jobs_by_key", "org", "idempotency_key", unique=True),
    Index("backend_jobs_by_status", "status"),
)

EVENTS = Table(
    "backend_events",
    METADATA,
    Column("job_id", String, primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("created_at", Double, nullable=False),
    Column("type", String, nullable=False),
    Column("level", String, nullable=False),
    Column("message", Text, nullable=False),
    Column("data", Text, nullable=False),
    Column("superseded_by", Integer, nullable=False, server_default="0"),
)

# In points and rollouts, `superseded_by` is part of the primary key. A superseded row stays, because a follower may
# have seen it, but its place is free for a new row.
POINTS = Table(
    "backend_points",
    METADATA,
    Column("job_id", String, primary_key=True),
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("name", String, primary_key=True),
    Column("created_at", Double, nullable=False),
    Column("value", Double, nullable=False),
    Column("phase", String, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("after_seq", Integer, nullable=False),
    Column("superseded_by", Integer, primary_key=True, autoincrement=False),
)

ROLLOUTS = Table(
    "backend_rollouts",
    METADATA,
    Column("job_id", String, primary_key=True),
    Column("phase", String, primary_key=True),
    Column("iteration", Integer, primary_key=True, autoincrement=False),
    Column("place", Integer, primary_key=True, autoincrement=False),
    Column("sample", Integer, primary_key=True, autoincrement=False),
    Column("seed", BigInteger, nullable=False),
    Column("status", String, nullable=False),
    Column("reward", Double),
    Column("rollout_id", String, nullable=False),
    Column("boundary", String),
    Column("code", String, nullable=False),
    Column("message", Text, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("after_seq", Integer, nullable=False),
    Column("superseded_by", Integer, primary_key=True, autoincrement=False),
    Column("scores", Text, nullable=False, server_default="{}"),
    Index("backend_rollouts_by_id", "job_id", "rollout_id"),
)

ENV_KEYS = Table(
    "backend_env_keys",
    METADATA,
    Column("org", String, primary_key=True),
    Column("name", String, primary_key=True),
    Column("key_id", String, nullable=False),
    Column("ciphertext", Text, nullable=False),
    Column("updated_at", Double, nullable=False),
)

MINTED = Table("backend_minted", METADATA, Column("org", String, primary_key=True))

APPLIED = applied_table("backend_migrations", METADATA)


OLDEST = "0004_tags_and_scores"
"""The oldest schema version that can be migrated."""

MIGRATIONS: Sequence[Migration] = ()
"""All migrations from `OLDEST` to the current schema, oldest first."""


def migrate(connection: Connection, place: str, migrations: Sequence[Migration] = MIGRATIONS) -> list[str]:
    """Apply pending migrations to the database at `place`. See `apply_migrations`. Raises StoreError if one fails."""
    return apply_migrations(connection, APPLIED, f"the job store in {place}", OLDEST, migrations)


@dataclass(frozen=True, slots=True)
class JobRow:
    """A row of `backend_jobs`, without the columns that only the engine needs.

    `completed` is the number of finished rollouts. `cancelling` is true if cancellation was requested. Times are Unix
    seconds.
    """

    job_id: str
    org: str
    created_at: float
    updated_at: float
    status: str
    engine: str
    trainer_id: str
    model: str
    idempotency_key: str | None
    fingerprint: str
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)
    total: int = 0
    completed: int = 0
    cancelling: bool = False
    final_reward: float | None = None
    error: str | None = None
    tags: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether the job has ended."""
        return self.status in ENDED


@dataclass(frozen=True, slots=True)
class JobEventRow:
    """A stored event. superseded_by: the number of the event that superseded it, or 0."""

    seq: int
    created_at: float
    event: Event
    superseded_by: int = 0


@dataclass(frozen=True, slots=True)
class CurvePointRow:
    """A stored point."""

    created_at: float
    point: CurvePoint


@dataclass(frozen=True, slots=True)
class IterationRow:
    """The rollouts of one phase of one iteration.

    Failed rollouts have no reward, so they are not part of the mean reward, which is None if no rollout has a reward.
    `undefined` counts rollouts that neither failed nor have a reward. `reward` and `seconds` are means.
    """

    phase: str
    iteration: int
    rollouts: int
    failed: int
    undefined: int
    reward: float | None
    seconds: float


def read_job(row: Row[Any]) -> JobRow:
    """Convert a database row to a `JobRow`. The column `results` is optional."""
    values = {"results": "{}", **row._mapping}
    for name in ("metrics", "results", "tags"):
        values[name] = json.loads(values[name])
    return JobRow(**values)


def read_event(row: Row[Any]) -> JobEventRow:
    """Convert a row of `backend_events`."""
    event = Event(row.type, row.message, row.level, json.loads(row.data))
    return JobEventRow(row.seq, row.created_at, event, row.superseded_by)


def event_values(event: Event) -> dict[str, Any]:
    """Return the column values of an event."""
    return {"type": event.type, "level": event.level, "message": event.message, "data": written(event.data)}


def read_point(row: Row[Any]) -> CurvePointRow:
    """Convert a row of `backend_points`."""
    return CurvePointRow(row.created_at, CurvePoint(row.name, row.value, row.step, row.phase, row.epoch))


def written(value: Mapping[str, Any]) -> str:
    """Encode a value as JSON for the store. Raises TypeError or ValueError if it cannot be encoded."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
