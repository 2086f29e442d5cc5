"""The tables of stored rollouts, and their migrations. Schema v1.

- `rollouts` contains columns for filters and sorting, JSON text for other fields, and the events as one blob of JSON. If the
  JSON is longer than `COMPRESS_ABOVE_BYTES`, it is compressed with zlib (level 1), and `events_encoding` states this. The
  small columns come first, so that a scan does not have to read the blob.
- `blobs` contains each image once, by the SHA-256 of its bytes. The column `blob_hashes` lists the images of a rollout.
- `idempotency_keys` contains the idempotency records of a day: the Idempotency-Key of a rollout, its owner, and its result.
- `rollout_scores` contains scores that another version of the scorer computed later.
- `annotations` contains people's scores of rollouts.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    inspect,
)

from taskapp_kit.errors import StoreError
from taskapp_kit.store.migrations import Migration, applied_table, apply_migrations

COMPRESS_ABOVE_BYTES = 4096
"""Events and answers whose JSON is longer than this are compressed, at a ratio of about 6 to 1 and 15 µs for 6 kB."""

METADATA = MetaData()

# Postgres compares text byte by byte, like SQLite. It is faster, and indexes stay valid if collations change.
_WORD = String().with_variant(Text(collation="C"), "postgresql")

ROLLOUTS = Table(
    "rollouts",
    METADATA,
    Column("rollout_id", _WORD, primary_key=True),
    Column("schema_version", Integer, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("run_id", _WORD, nullable=False),
    Column("group_id", _WORD),
    Column("environment", _WORD, nullable=False),
    Column("split", _WORD, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("row_hash", _WORD),
    Column("mode", _WORD, nullable=False),
    Column("status", _WORD, nullable=False),
    Column("stop_reason", _WORD, nullable=False),
    Column("failure_boundary", _WORD),
    Column("length", BigInteger, nullable=False),
    Column("total_reward", Double, nullable=False),
    Column("reward", Double),
    Column("outcome_score", Double),
    Column("events_score", Double),
    Column("seconds", Double, nullable=False),
    Column("policy_name", _WORD),
    Column("model", _WORD),
    Column("key_label", _WORD),
    Column("app", _WORD, nullable=False),
    Column("app_version", _WORD, nullable=False),
    Column("environment_version", _WORD, nullable=False),
    Column("kit_version", _WORD, nullable=False),
    Column("spec_hash", _WORD, nullable=False),
    Column("digest", _WORD),
    Column("observation_digest", _WORD),
    Column("tokens", BigInteger),
    Column("cost", Double),
    Column("config", Text, nullable=False),
    Column("policy", Text, nullable=False),
    Column("scorecard", Text),
    Column("failure", Text),
    Column("timing", Text, nullable=False),
    Column("private", Text, nullable=False),
    Column("blob_hashes", Text, nullable=False),
    Column("events_encoding", _WORD, nullable=False),
    Column("events", LargeBinary, nullable=False),
    Index("rollouts_by_time", "created_at"),
    Index("rollouts_by_environment", "environment", "created_at"),
    Index("rollouts_by_run", "run_id", "created_at", "rollout_id"),
    Index("rollouts_by_app", "app", "created_at", "rollout_id"),
    Index("rollouts_by_key_label", "app", "key_label", "created_at", "rollout_id"),
)
Index(
    "rollouts_by_group",
    ROLLOUTS.c.group_id,
    sqlite_where=ROLLOUTS.c.group_id.is_not(None),
    postgresql_where=ROLLOUTS.c.group_id.is_not(None),
)

LISTED = Index(
    "rollouts_listed",
    *(
        ROLLOUTS.c[name]
        for name in (
            "created_at", "rollout_id", "app", "key_label", "environment", "split", "seed", "policy_name", "model", "status",
            "failure_boundary", "reward", "cost", "tokens", "seconds", "length",
        )
    ),
).ddl_if(dialect="sqlite")  # fmt: skip
"""An index of all columns by which lists are filtered and sorted, so that a list reads only the rows that it shows.

Postgres does not have this index. It rejects entries over 2.7 kB, because a model's name may have any length, and it reads
rows fast enough.
"""

BLOBS = Table(
    "blobs", METADATA, Column("sha256", _WORD, primary_key=True), Column("bytes", LargeBinary, nullable=False)
)

IDEMPOTENCY_KEYS = Table(
    "idempotency_keys",
    METADATA,
    Column("rollout_id", _WORD, primary_key=True),
    Column("created_at", Double, nullable=False),
    Column("key", _WORD),
    Column("fingerprint", _WORD, nullable=False),
    Column("key_label", _WORD),
    Column("app", _WORD),
    Column("lease_owner", _WORD, nullable=False),
    Column("process", _WORD),
    Column("lease_until", Double, nullable=False),
    Column("settled_at", Double),
    Column("failure", Text),
    Column("answer_encoding", _WORD),
    Column("answer", LargeBinary),
    Index("idempotency_keys_by_key", "key", unique=True),
    Index("idempotency_keys_by_time", "created_at"),
)

SCORES = Table(
    "rollout_scores",
    METADATA,
    Column("scorer", _WORD, primary_key=True),
    Column("rollout_id", _WORD, primary_key=True),
    Column("created_at", Double, nullable=False),
    Column("status", _WORD, nullable=False),
    Column("reward", Double),
    Column("outcome_score", Double),
    Column("events_score", Double),
    Column("seconds", Double, nullable=False),
    Column("cost", Double),
    Column("app_version", _WORD, nullable=False),
    Column("spec_hash", _WORD, nullable=False),
    Column("kit_version", _WORD, nullable=False),
    Column("scorecard", Text),
    Column("failure", Text),
    Column("private", Text, nullable=False),
)

ANNOTATIONS = Table(
    "annotations",
    METADATA,
    Column("rollout_id", _WORD, primary_key=True),
    Column("criterion", _WORD, primary_key=True),
    Column("annotator", _WORD, primary_key=True),
    Column("score", Double, nullable=False),
    Column("note", Text, nullable=False),
    Column("created_at", Double, nullable=False),
)

APPLIED = applied_table("taskapp_migrations", METADATA, _WORD)


OLDEST = "0008_annotations"
"""The oldest schema that is upgraded, from before tables and columns were renamed."""


def rename_idempotency(connection: Connection) -> None:
    """Rename the table `tickets` to `idempotency_keys`, its indexes, and its column `holder` to `lease_owner`."""
    connection.exec_driver_sql("ALTER TABLE tickets RENAME TO idempotency_keys")
    connection.exec_driver_sql("ALTER TABLE idempotency_keys RENAME COLUMN holder TO lease_owner")
    for name in ("tickets_by_key", "tickets_by_time"):
        connection.exec_driver_sql(f"DROP INDEX {name}")  # SQLite cannot rename an index
    for index in IDEMPOTENCY_KEYS.indexes:
        index.create(connection)


MIGRATIONS: Sequence[Migration] = (("0009_idempotency_keys", rename_idempotency),)
"""All migrations from `OLDEST` to the current schema, oldest first."""


def migrate(
    connection: Connection, place: str, migrations: Sequence[Migration] = MIGRATIONS, *, shared: bool = False
) -> list[str]:
    """Apply missing migrations and return their names. See `apply_migrations`.

    Raises StoreError if a newer release or another program wrote the database.

    place: The database's name in messages. shared: Whether the database may also contain tables of other programs.
    """
    tables = set(inspect(connection).get_table_names())
    if APPLIED.name not in tables:
        foreign = tables & set(METADATA.tables) if shared else tables
        if foreign:
            raise StoreError(
                f"{place} is another program's database. It contains {min(foreign)!r} but no table of taskapp-kit.",
                hint=f"Give the store a separate {'database or schema' if shared else 'file'}.",
            )
    return apply_migrations(connection, APPLIED, place, OLDEST, migrations)
