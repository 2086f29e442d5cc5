"""A store that somebody else made: a sentence instead of a hang, of memory without end, or of a traceback."""

from __future__ import annotations

import json
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from taskapp_kit.errors import StoreError, StoreRefusal
from taskapp_kit.records.protocols import RolloutQuery
from taskapp_kit.store import open_store
from taskapp_kit.store.rows import MOST_EVENT_BYTES, packed, to_row
from taskapp_kit.store.sqlite import Database
from tests.store.opened_stores import in_use, opened
from tests.store.stored_samples import rollout

pytestmark = pytest.mark.anyio


@pytest.fixture
async def database(tmp_path: Path) -> Path:
    async with in_use(opened(str(tmp_path / "s.db"))) as store:
        await store.save(rollout())
    return tmp_path / "s.db"


def change(database: Path, *statements: str, values: tuple[Any, ...] = ()) -> None:
    with closing(sqlite3.connect(database)) as connection:
        for statement in statements:
            connection.execute(statement, values)
        connection.commit()


async def read(database: Path) -> None:
    async with in_use(open_store(str(database), create=False)) as store:
        await store.query(RolloutQuery())
        await store.load("r1")


ENDLESS = "CREATE VIEW {} AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT {} FROM old, n"


@pytest.mark.parametrize(
    "statements",
    [
        ("ALTER TABLE rollouts RENAME TO old", ENDLESS.format("rollouts", "old.*")),
        ("ALTER TABLE blobs RENAME TO old", ENDLESS.format("blobs", "old.*")),
        ("CREATE VIEW other AS SELECT 1",),
        ("CREATE TRIGGER odd AFTER INSERT ON rollouts BEGIN DELETE FROM blobs; END",),
        ("ALTER TABLE rollouts ADD COLUMN more TEXT",),
        ("ALTER TABLE rollouts ADD COLUMN more BLOB GENERATED ALWAYS AS (hex(zeroblob(100000000))) VIRTUAL",),
        ("DROP TABLE blobs", "CREATE VIRTUAL TABLE blobs USING fts5(sha256, data, size, created_at)"),
    ],
)
async def test_foreign_tables_are_not_read(statements: tuple[str, ...], database: Path) -> None:
    change(database, *statements)
    with pytest.raises(StoreError):
        open_store(str(database), create=False)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("seed", "many"),
        ("created_at", "yesterday"),
        ("created_at", float("inf")),
        ("reward", "high"),
        ("length", 2.5),
        ("status", b"terminated"),
        ("events", "text"),
        ("events_encoding", "brotli"),
        ("events", b"{}"),
        ("policy", "[]"),
        ("policy", 3),
        ("scorecard", "true"),
        ("config", "{"),
    ],
)
async def test_a_row_with_a_value_of_another_type_is_named_as_damaged(column: str, value: Any, database: Path) -> None:
    change(database, f"UPDATE rollouts SET {column} = ?", values=(value,))
    if column == "events" and isinstance(value, bytes):
        change(database, "UPDATE rollouts SET events_encoding = 'json'")
    with pytest.raises(StoreError):
        await read(database)


async def test_events_unpack_to_no_more_than_is_ever_written(database: Path) -> None:
    bomb = zlib.compressobj(9)
    block = b" " * (1 << 20)
    data = b"".join(
        [
            bomb.compress(b"["),
            *(bomb.compress(block) for _ in range(MOST_EVENT_BYTES >> 20)),
            bomb.compress(b"]"),
            bomb.flush(),
        ]
    )
    change(database, "UPDATE rollouts SET events = ?, events_encoding = 'zlib'", values=(data,))
    with pytest.raises(StoreError):
        await read(database)


def test_events_too_large_to_read_are_not_written() -> None:
    assert packed(json.dumps([{}]).encode())[0] == "json"
    with pytest.raises(StoreRefusal):
        to_row(rollout(events=[{"text": "x" * MOST_EVENT_BYTES}]))


def test_endless_read_is_interrupted(tmp_path: Path) -> None:
    database = Database(tmp_path / "r.db", 10.0, read_seconds=0.0)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    try:
        with database.readers.connect() as connection, pytest.raises(OperationalError) as caught:
            connection.exec_driver_sql(endless).scalar()
        assert "SQLITE_INTERRUPT" in str(database.explain(caught.value, "read"))
    finally:
        database.close()
