"""What is SQLite's own: files and their modes, locks, logs, damage. What all stores do is in test_sql.py."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import stat
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from taskapp_kit.errors import StoreError
from taskapp_kit.store.sqlite import SqliteStore
from tests.store.opened_stores import in_use
from tests.store.stored_samples import pictured, png, rollout

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with in_use(SqliteStore(tmp_path / "rollouts.db")) as made:
        yield made


async def test_files_are_private_and_directories_made(tmp_path: Path) -> None:
    path = tmp_path / "one" / "two" / "rollouts.db"
    async with in_use(SqliteStore(path)) as store:
        await store.save(rollout())
        for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        for directory in (path.parent, path.parent.parent):
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert [file.name for file in path.parent.iterdir()] == ["rollouts.db"]  # closing moved the log into the file


async def test_write_ahead_log_and_full_flush_are_on(store: SqliteStore) -> None:
    with store._database.writer.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


async def test_rollout_survives_reopening_at_an_unusual_path(tmp_path: Path) -> None:
    path = tmp_path / "é?#% file:x" / "rollouts.db"
    async with in_use(SqliteStore(path)) as store:
        await store.save(pictured("r1", 1))
    async with in_use(SqliteStore(path)) as store:
        assert await store.load("r1") == replace(pictured("r1", 1), blobs={})
    assert path.is_file()


async def test_a_cancelled_caller_does_not_undo_its_save(store: SqliteStore) -> None:
    task = asyncio.create_task(store.save(rollout("r1")))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await store.save(rollout("r2"))
    assert await store.load("r1") == rollout("r1")


async def test_the_event_loop_stays_free_while_another_process_holds_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.db"
    store = SqliteStore(path, busy_timeout_seconds=1.0, save_seconds=1.0)
    await store.save(rollout("r1"))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    save = asyncio.create_task(store.save(rollout("r2")))
    longest, last = 0.0, began
    while not save.done():
        await asyncio.sleep(0.01)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
        assert await store.load("r1") is not None  # readers do not wait for the lock
    with pytest.raises(StoreError, match="SQLITE_BUSY"):
        await save
    assert time.monotonic() - began >= 0.9
    assert longest < 0.8
    other.execute("ROLLBACK")
    other.close()
    await store.save(rollout("r2"))
    await store.close()


async def test_a_file_deleted_or_replaced_under_an_open_store_is_noticed(store: SqliteStore, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.db"
    await store.save(rollout("r1"))
    path.unlink()
    with pytest.raises(StoreError, match="deleted or replaced while it was open"):
        await store.save(rollout("r2"))
    path.write_bytes(b"")
    with pytest.raises(StoreError, match="replaced"):
        await store.save(rollout("r3"))


async def test_check_finds_damage(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.db"
    async with in_use(SqliteStore(path)) as store:
        for index in range(3):
            await store.save(pictured(f"r{index}", index))
    file = sqlite3.connect(path)
    file.execute("DELETE FROM blobs WHERE sha256 = ?", [hashlib.sha256(png(0)).hexdigest()])
    file.execute("UPDATE blobs SET bytes = x'00' WHERE sha256 = ?", [hashlib.sha256(png(1)).hexdigest()])
    file.execute("UPDATE rollouts SET config = '{' WHERE rollout_id = 'r2'")
    file.commit()
    file.close()
    async with in_use(SqliteStore(path)) as store:
        found = await store.check()
        assert not found.ok
        assert found.integrity == []
        assert found.missing_blobs == [hashlib.sha256(png(0)).hexdigest()]
        assert len(found.damaged) == 2
        assert any("'r2'" in line for line in found.damaged)
        with pytest.raises(StoreError, match="damaged"):
            await store.load("r2")
        assert await store.load("r1") is not None
