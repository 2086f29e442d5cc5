"""The store as its callers see it, on a real file and in memory."""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import sqlite3
import stat
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from stored_samples import any_rollout, episode, pictured, png, rollout

from taskapp_kit.contract.ports import Store, StoredRollout
from taskapp_kit.errors import StoreError
from taskapp_kit.store.sqlite import SqliteStore


def with_store(path: Path | None, use: Callable[[SqliteStore], Awaitable[None]]) -> None:
    """Opens a store, uses it on a fresh event loop, closes it."""

    async def run() -> None:
        store = SqliteStore(path)
        try:
            await use(store)
        finally:
            await store.close()

    asyncio.run(run())


@pytest.fixture(params=["file", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "rollouts.db" if request.param == "file" else None


def test_save_load_blob_recent_check(place: Path | None) -> None:
    async def use(store: SqliteStore) -> None:
        kept: Store = store
        old, new = pictured("old", 1, 2), pictured("new", 2, 3)
        old.created_at, new.environment = 1.0, "other"
        await kept.save(old)
        await kept.save(new)
        assert await kept.load("old") == replace(old, blobs={})
        assert await kept.load("nobody") is None
        assert await kept.blob(hashlib.sha256(png(3)).hexdigest()) == png(3)
        assert await kept.blob("0" * 64) is None
        assert await kept.recent() == [replace(new, events=[], blobs={}), replace(old, events=[], blobs={})]
        assert [one.rollout_id for one in await kept.recent(1)] == ["new"]
        assert [one.rollout_id for one in await kept.recent(environment="adder")] == ["old"]
        assert await kept.recent(0) == []
        with pytest.raises(StoreError, match="limit is 0 or more"):
            await kept.recent(-1)
        found = await store.check()
        assert found.ok
        assert (found.rollouts, found.blobs) == (2, 3)  # the shared picture is kept once

    with_store(place, use)


def test_any_rollout_comes_back_equal(place: Path | None) -> None:
    number = iter(range(10**6))

    async def use(store: SqliteStore) -> None:
        @settings(max_examples=100, deadline=None)
        @given(any_rollout("placeholder"))
        def law(made: StoredRollout) -> None:
            made = replace(made, rollout_id=f"r{next(number)}")

            async def there_and_back() -> None:
                await store.save(made)
                assert await store.load(made.rollout_id) == replace(made, blobs={})
                for name, data in made.blobs.items():
                    assert await store.blob(name) == data

            asyncio.run(there_and_back())

        await asyncio.to_thread(law)  # each example on an event loop of its own: a store serves any
        assert (await store.check()).ok

    with_store(place, use)


def test_the_same_rollout_again_is_fine_and_another_under_its_id_is_not(place: Path | None) -> None:
    async def use(store: SqliteStore) -> None:
        made = rollout("r1", config={"low": 5, "high": 15})
        await asyncio.gather(*(store.save(made) for _ in range(20)))
        await store.save(replace(made, config={"high": 15, "low": 5}))
        with pytest.raises(StoreError, match=r"'r1'.*differs in reward, config\)"):
            await store.save(replace(made, reward=0.5, config={"low": 5.0, "high": 15}))
        with pytest.raises(StoreError, match="differs in events"):
            await store.save(replace(made, events=episode(9)))
        assert await store.load("r1") == made
        assert (await store.check()).rollouts == 1

    with_store(place, use)


def test_one_refusal_in_a_batch_touches_no_other_and_leaves_no_picture(place: Path | None) -> None:
    async def use(store: SqliteStore) -> None:
        await store.save(rollout("taken"))
        batch = [rollout(f"r{index}") for index in range(20)]
        batch[3] = replace(batch[3], config={"x": float("nan")})
        batch[7] = pictured("taken", 5)
        batch[11] = replace(pictured("r11", 6), blobs={})
        outcomes = await asyncio.gather(*(store.save(one) for one in batch), return_exceptions=True)
        assert [index for index, outcome in enumerate(outcomes) if outcome is not None] == [3, 7, 11]
        assert "config.x is nan" in str(outcomes[3])
        assert "other content" in str(outcomes[7])
        assert "bytes were neither given nor are in the store" in str(outcomes[11])
        found = await store.check()
        assert (found.rollouts, found.blobs, found.ok) == (18, 0, True)

    with_store(place, use)


def test_a_picture_that_is_kept_already_need_not_be_given_again(place: Path | None) -> None:
    async def use(store: SqliteStore) -> None:
        await store.save(pictured("first", 1))
        await store.save(replace(pictured("second", 1), blobs={}))
        assert (await store.check()).ok

    with_store(place, use)


def test_200_tasks_save_and_read_at_once(place: Path | None) -> None:
    async def use(store: SqliteStore) -> None:
        async def one(index: int) -> None:
            made = pictured(f"r{index}", index % 5, index)
            await store.save(made)
            assert await store.load(made.rollout_id) == replace(made, blobs={})

        await asyncio.gather(*(one(index) for index in range(200)))
        found = await store.check()
        assert (found.rollouts, found.blobs, found.ok) == (200, 200, True)

    with_store(place, use)


def test_files_are_private_and_directories_made(tmp_path: Path) -> None:
    path = tmp_path / "one" / "two" / "rollouts.db"

    async def use(store: SqliteStore) -> None:
        await store.save(rollout())
        for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        for directory in (path.parent, path.parent.parent):
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700

    with_store(path, use)
    assert [file.name for file in path.parent.iterdir()] == ["rollouts.db"]  # closing moved the log into the file


def test_write_ahead_log_and_full_flush_are_on(tmp_path: Path) -> None:
    async def use(store: SqliteStore) -> None:
        with store._database.writer.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2

    with_store(tmp_path / "rollouts.db", use)


def test_what_was_kept_is_there_after_reopening_under_a_path_with_odd_characters(tmp_path: Path) -> None:
    path = tmp_path / "é?#% file:x" / "rollouts.db"

    async def save(store: SqliteStore) -> None:
        await store.save(pictured("r1", 1))

    async def load(store: SqliteStore) -> None:
        assert await store.load("r1") == replace(pictured("r1", 1), blobs={})

    with_store(path, save)
    with_store(path, load)
    assert path.is_file()


def test_close_writes_what_waits_and_then_refuses(place: Path | None) -> None:
    async def run() -> None:
        store = SqliteStore(place)
        saves = [asyncio.create_task(store.save(rollout(f"r{index}"))) for index in range(300)]
        await asyncio.sleep(0)  # all of them are in the queue now
        await store.close()
        await store.close()
        assert await asyncio.gather(*saves) == [None] * 300
        for refused in (store.save(rollout("late")), store.load("r1"), store.recent(), store.check()):
            with pytest.raises(StoreError, match="is closed"):
                await refused

    asyncio.run(run())
    if place:

        async def count(store: SqliteStore) -> None:
            assert (await store.check()).rollouts == 300

        with_store(place, count)


def test_a_cancelled_caller_does_not_undo_its_save(tmp_path: Path) -> None:
    async def use(store: SqliteStore) -> None:
        task = asyncio.create_task(store.save(rollout("r1")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await store.save(rollout("r2"))
        assert await store.load("r1") == rollout("r1")

    with_store(tmp_path / "rollouts.db", use)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_hangs_when_the_writing_thread_dies(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    async def use(store: SqliteStore) -> None:
        thread = store._writer.thread_id
        assert thread is not None
        await store.save(rollout("before"))
        # A real asynchronous exception, as an interpreter or a debugger throws it; it strikes once the thread wakes.
        assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Killed)) == 1
        saves = [store.save(rollout(f"r{index}")) for index in range(50)]
        outcomes = await asyncio.wait_for(asyncio.gather(*saves, return_exceptions=True), 5)
        assert any(isinstance(outcome, StoreError) for outcome in outcomes)
        assert all(outcome is None or "was not kept" in str(outcome) for outcome in outcomes)
        with pytest.raises(StoreError, match="writing thread has ended"):
            await asyncio.wait_for(store.save(rollout("after")), 5)
        for index, outcome in enumerate(outcomes):
            if outcome is None:
                assert await store.load(f"r{index}") is not None
        assert await store.load("before") is not None

    with_store(tmp_path / "rollouts.db", use)


def test_the_event_loop_stays_free_while_another_process_holds_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.db"

    async def run() -> None:
        store = SqliteStore(path, busy_timeout_seconds=1.0)
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
        with pytest.raises(StoreError, match="another process has held the write lock"):
            await save
        assert time.monotonic() - began >= 0.9
        assert longest < 0.8
        other.execute("ROLLBACK")
        other.close()
        await store.save(rollout("r2"))
        await store.close()

    asyncio.run(run())


def test_a_file_deleted_or_replaced_under_an_open_store_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.db"

    async def use(store: SqliteStore) -> None:
        await store.save(rollout("r1"))
        path.unlink()
        with pytest.raises(StoreError, match="deleted or replaced while it was open"):
            await store.save(rollout("r2"))
        path.write_bytes(b"")
        with pytest.raises(StoreError, match="deleted or replaced while it was open"):
            await store.save(rollout("r3"))

    with_store(path, use)


def test_check_finds_damage(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.db"

    async def save(store: SqliteStore) -> None:
        for index in range(3):
            await store.save(pictured(f"r{index}", index))

    async def check(store: SqliteStore) -> None:
        found = await store.check()
        assert not found.ok
        assert found.integrity == []
        assert found.missing_blobs == [hashlib.sha256(png(0)).hexdigest()]
        assert len(found.damaged) == 2
        assert any("'r2'" in line for line in found.damaged)
        with pytest.raises(StoreError, match="damaged"):
            await store.load("r2")
        assert await store.load("r1") is not None

    with_store(path, save)
    file = sqlite3.connect(path)
    file.execute("DELETE FROM blobs WHERE sha256 = ?", [hashlib.sha256(png(0)).hexdigest()])
    file.execute("UPDATE blobs SET bytes = x'00' WHERE sha256 = ?", [hashlib.sha256(png(1)).hexdigest()])
    file.execute("UPDATE rollouts SET config = '{' WHERE rollout_id = 'r2'")
    file.commit()
    file.close()
    with_store(path, check)


def test_a_save_larger_than_a_transaction_is_spread_and_kept(tmp_path: Path) -> None:
    async def use(store: SqliteStore) -> None:
        large = [rollout(f"r{index}", private={"blob": f"{index}" * 2**20}) for index in range(4)]
        large += [rollout(f"e{index}", events=[{"text": "é" * (5 * 2**20)}]) for index in range(4)]
        await asyncio.gather(*(store.save(one) for one in large))
        assert await store.load("e3") == large[-1]
        assert (await store.check()).rollouts == 8

    with_store(tmp_path / "rollouts.db", use)
