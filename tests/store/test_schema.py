"""The tables: created, migrated, refused when they are newer, older or not ours; and listed in the documentation.

`schemas/rollouts.db.gz` and `jobs.db.gz` were written by the last commit before tables were renamed, with that commit's
own code. They have rows of every kind.
"""

from __future__ import annotations

import gzip
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, inspect, text

from taskapp_kit.errors import StoreError
from taskapp_kit.jobs.server.data_files import JobDatabase
from taskapp_kit.jobs.server.store import JobStore
from taskapp_kit.records.protocols import IdempotencyRecord, RolloutQuery, SystemClock
from taskapp_kit.store.schema import METADATA, MIGRATIONS, OLDEST, migrate
from taskapp_kit.store.sqlite import SqliteStore
from tests.store.stored_samples import pictured, rollout

SCHEMAS = Path(__file__).parent / "schemas"
DOCS = Path(__file__).parents[2] / "docs/operate/store.md"
NAMES = [OLDEST, *(name for name, _ in MIGRATIONS)]


@pytest.fixture
def rollouts(tmp_path: Path) -> Path:
    path = tmp_path / "rollouts.db"
    path.write_bytes(gzip.decompress((SCHEMAS / "rollouts.db.gz").read_bytes()))
    return path


def tables(path: Path) -> dict[str, object]:
    """The columns of each table and index, in order."""
    with closing(sqlite3.connect(path)) as file:
        names = file.execute("SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'").fetchall()
        return {
            name: [row[1:4] if kind == "table" else row[2] for row in file.execute(f"PRAGMA {kind}_info({name})")]
            for kind, name in names
        }


class Then:
    """The clock of the moment when the stores were written."""

    now = staticmethod(lambda: 1_800_000_000.0)
    monotonic = SystemClock.monotonic


@pytest.mark.anyio
async def test_an_older_store_is_brought_up_to_date(rollouts: Path, tmp_path: Path) -> None:
    store = SqliteStore(rollouts)
    assert (await store.check()).ok
    rows = await store.listed(RolloutQuery())
    assert {row.rollout_id: row.status for row in rows} == {
        "plain": "terminated", "pictured": "terminated", "failed": "failed", "session": "terminated"
    }  # fmt: skip
    shown = await store.load("pictured")
    assert shown == replace(pictured("pictured", 1, 2), blobs={})
    session = await store.load("session")
    assert session is not None and session.policy["protocol"] == "openenv"
    assert {name: item.reward for name, item in (await store.scores("v2")).items()} == {"plain": 0.5}
    assert [item.score for item in await store.annotations()] == [0.5]
    records = store.coordinator(Then())
    states = {name: await records.look(name) for name in ("plain", "failed", "running")}
    assert {name: claim and claim.state for name, claim in states.items()} == {
        "plain": "settled", "failed": "settled", "running": "lost"
    }  # fmt: skip
    plain = states["plain"]
    assert plain is not None and plain.settled is not None and plain.settled.answer == b'{"answer": "plain"}'
    assert await records.claim(IdempotencyRecord("again", "f", Then.now(), "key of running")) is None
    await records.close()
    await store.save(rollout("new"))
    await store.close()
    SqliteStore(tmp_path / "fresh.db")._finish()
    migrated, fresh = tables(rollouts), tables(tmp_path / "fresh.db")
    assert migrated == fresh


@pytest.mark.anyio
async def test_an_older_store_of_jobs_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.write_bytes(gzip.decompress((SCHEMAS / "jobs.db.gz").read_bytes()))
    jobs = JobStore(JobDatabase(path))
    assert {job.job_id: job.status for job in await jobs.jobs("org", limit=9)} == {
        "rl_1": "queued", "rl_2": "succeeded"
    }  # fmt: skip
    assert len(await jobs.events("rl_1", since_seq=0, limit=9)) == 2
    assert [row.point.value for row in await jobs.points("rl_1", after_step=None, limit=9)] == [0.5]
    assert [item.rollout_id for item in await jobs.stored("rl_1", "train", 1)] == ["r1"]
    assert await jobs.keys("org") == [("app", "sealed")]
    assert jobs.minted(None) == {"org"}
    await jobs.close()


def add_flag(connection: Connection) -> None:
    connection.execute(text("ALTER TABLE rollouts ADD COLUMN flag TEXT"))


def test_each_migration_runs_once_and_in_order() -> None:
    with create_engine("sqlite://").connect() as connection:
        assert migrate(connection, "here") == NAMES
        assert migrate(connection, "here") == []
        later = (*MIGRATIONS, ("0099_flag", add_flag))
        assert migrate(connection, "here", later) == ["0099_flag"]
        assert migrate(connection, "here", later) == []
        assert "flag" in {column["name"] for column in inspect(connection).get_columns("rollouts")}


def test_a_new_file_has_the_tables_that_the_code_uses() -> None:
    with create_engine("sqlite://").connect() as connection:
        migrate(connection, "here")
        present = inspect(connection)
        assert set(present.get_table_names()) == set(METADATA.tables)
        for name, table in METADATA.tables.items():
            assert [column["name"] for column in present.get_columns(name)] == [column.name for column in table.columns]
            assert {index["name"] for index in present.get_indexes(name)} == {index.name for index in table.indexes}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("INSERT INTO taskapp_migrations VALUES ('0099_future', 0)", "0099_future"),
        (f"DELETE FROM taskapp_migrations WHERE name >= '{OLDEST}'", "0007_listed"),
        ("DROP TABLE taskapp_migrations", "annotations"),
    ],
)
def test_a_newer_an_older_and_another_programs_file_are_refused_and_left_alone(
    rollouts: Path, change: str, named: str
) -> None:
    with closing(sqlite3.connect(rollouts)) as file:
        file.execute("PRAGMA journal_mode=WAL")
        file.execute(change)
        file.commit()
    before = tables(rollouts)
    with pytest.raises(StoreError, match=named):
        SqliteStore(rollouts)
    assert tables(rollouts) == before


def test_a_file_that_is_not_a_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("milk, eggs\n" * 100)
    with pytest.raises(StoreError, match="SQLITE_NOTADB"):
        SqliteStore(path)
    assert path.read_text() == "milk, eggs\n" * 100


def test_the_documentation_names_every_table_and_column() -> None:
    written = DOCS.read_text()
    missing = [
        f"{table.name}.{column.name}"
        for table in METADATA.tables.values()
        for column in table.columns
        if f"`{column.name}`" not in written or f"`{table.name}`" not in written
    ]
    assert missing == []
