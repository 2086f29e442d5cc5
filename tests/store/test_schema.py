"""The tables: made, migrated, refused when they are newer or not ours; and listed in the documentation."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, inspect, text
from stored_samples import rollout

from taskapp_kit.contract.protocols import IdempotencyRecord, SystemClock
from taskapp_kit.errors import StoreError
from taskapp_kit.store.rows import to_row
from taskapp_kit.store.schema import METADATA, MIGRATIONS, ROLLOUTS, migrate
from taskapp_kit.store.sqlite import SqliteStore

DOCS = Path(__file__).parents[2] / "docs" / "store.md"


def add_flag(connection: Connection) -> None:
    if "flag" not in {column["name"] for column in inspect(connection).get_columns("rollouts")}:
        connection.execute(text("ALTER TABLE rollouts ADD COLUMN flag TEXT"))


def test_each_migration_runs_once_and_in_order() -> None:
    with create_engine("sqlite://").connect() as connection:
        assert migrate(connection, "here") == [name for name, _ in MIGRATIONS]
        assert migrate(connection, "here") == []
        later = (*MIGRATIONS, ("0099_flag", add_flag))
        assert migrate(connection, "here", later) == ["0099_flag"]
        assert migrate(connection, "here", later) == []
        assert "flag" in {column["name"] for column in inspect(connection).get_columns("rollouts")}
        with pytest.raises(StoreError, match=rf"newer taskapp-kit.*'0099_flag'.*'{MIGRATIONS[-1][0]}'.*Upgrade"):
            migrate(connection, "here")


def test_a_migrated_file_has_the_tables_that_the_code_uses() -> None:
    with create_engine("sqlite://").connect() as connection:
        migrate(connection, "here")
        found = inspect(connection)
        assert set(found.get_table_names()) == set(METADATA.tables)
        for name, table in METADATA.tables.items():
            assert [column["name"] for column in found.get_columns(name)] == [column.name for column in table.columns]
            assert {index["name"] for index in found.get_indexes(name)} == {index.name for index in table.indexes}


def test_a_file_of_the_first_release_gets_the_tickets_and_keeps_its_rollouts(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.db"
    with create_engine(f"sqlite:///{path}").begin() as connection:
        assert migrate(connection, "here", MIGRATIONS[:1]) == ["0001_first_tables"]
        assert set(inspect(connection).get_table_names()) == {"rollouts", "blobs", "taskapp_migrations"}
        row = to_row(rollout("old"))
        connection.execute(ROLLOUTS.insert().values(row.values))

    async def use() -> None:
        store = SqliteStore(path)
        tickets = store.coordinator(SystemClock())
        assert tickets is not None
        ticket = IdempotencyRecord("new", "f", time.time(), "k")
        assert await tickets.claim(ticket) is None
        found = await tickets.look("new")
        assert found is not None and found.ticket == ticket
        kept = await store.load("old")
        assert kept == rollout("old")
        await tickets.close()
        await store.close()

    asyncio.run(use())
    with create_engine(f"sqlite:///{path}").connect() as connection:
        assert migrate(connection, "here") == []


def test_a_file_of_release_0_1_0_gets_the_new_column_and_takes_new_rollouts(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.db"
    with create_engine(f"sqlite:///{path}").begin() as connection:
        migrate(connection, "here", MIGRATIONS[:2])
        connection.execute(ROLLOUTS.insert().values(to_row(rollout("old")).values))
        connection.execute(text("ALTER TABLE rollouts DROP COLUMN observation_digest"))

    async def use() -> None:
        store = SqliteStore(path)
        assert await store.load("old") == rollout("old")
        await store.save(rollout("old"))  # the same again
        new = rollout("new", created_at=2e9, observation_digest="c" * 64)
        await store.save(new)
        assert await store.load("new") == new
        listed = await store.recent()
        assert [(one.rollout_id, one.observation_digest) for one in listed] == [("new", "c" * 64), ("old", None)]
        assert (await store.check()).ok
        await store.close()

    asyncio.run(use())


def test_a_newer_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.db"
    SqliteStore(path)._finish()
    file = sqlite3.connect(path)
    file.execute("INSERT INTO taskapp_migrations VALUES ('0099_future', 0)")
    file.commit()
    file.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=f"{path} .*'0099_future'"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    file = sqlite3.connect(path)
    file.execute("CREATE TABLE customers (name TEXT)")
    file.commit()
    with pytest.raises(StoreError, match=r"theirs\.db .*'customers'"):
        SqliteStore(path)
    assert file.execute("SELECT name FROM sqlite_master").fetchall() == [("customers",)]
    file.close()


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
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
