"""The store as its callers see it: on a real file, in memory, and in a real Postgres."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from sqlalchemy.dialects import sqlite

from taskapp_kit.errors import StoreError
from taskapp_kit.records.content import Image
from taskapp_kit.records.protocols import IdempotencyRecord, RolloutQuery, Store, StoredRollout, SystemClock
from taskapp_kit.store.queries import SUMMARY, matching
from taskapp_kit.store.sql import SqlStore
from taskapp_kit.store.sqlite import SqliteStore
from tests.store.opened_stores import opened
from tests.store.stored_samples import any_rollout, episode, pictured, png, rollout

pytestmark = [pytest.mark.anyio, pytest.mark.process]


async def test_save_load_blob_recent_check(store: SqlStore) -> None:
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
    with pytest.raises(StoreError, match="limit"):
        await kept.recent(-1)
    found = await store.check()
    assert found.ok
    assert (found.rollouts, found.blobs) == (2, 3)  # the shared picture is kept once


async def test_any_rollout_comes_back_equal(store: SqlStore) -> None:
    number = iter(range(10**6))

    @settings(max_examples=30)  # test_rows.py draws more of them; here a database is added
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


async def test_the_same_rollout_again_is_fine_and_another_under_its_id_is_not(store: SqlStore) -> None:
    made = rollout("r1", config={"low": 5, "high": 15})
    await asyncio.gather(*(store.save(made) for _ in range(20)))
    await store.save(replace(made, config={"high": 15, "low": 5}))
    with pytest.raises(StoreError, match=r"'r1'.*reward, config\."):
        await store.save(replace(made, reward=0.5, config={"low": 5.0, "high": 15}))
    with pytest.raises(StoreError, match=r"'r1'.* events\."):
        await store.save(replace(made, events=episode(9)))
    assert await store.load("r1") == made
    assert (await store.check()).rollouts == 1


async def test_one_refusal_in_a_batch_touches_no_other_and_leaves_no_picture(store: SqlStore) -> None:
    await store.save(rollout("taken"))
    batch = [rollout(f"r{index}") for index in range(20)]
    batch[3] = replace(batch[3], config={"x": float("nan")})
    batch[7] = pictured("taken", 5)
    batch[11] = replace(pictured("r11", 6), blobs={})
    outcomes = await asyncio.gather(*(store.save(one) for one in batch), return_exceptions=True)
    assert [index for index, outcome in enumerate(outcomes) if outcome is not None] == [3, 7, 11]
    assert "config" in str(outcomes[3])
    assert "A different rollout" in str(outcomes[7])
    assert "are neither in `blobs` nor in the store" in str(outcomes[11])
    found = await store.check()
    assert (found.rollouts, found.blobs, found.ok) == (18, 0, True)


async def test_a_picture_that_is_kept_already_need_not_be_given_again(store: SqlStore) -> None:
    await store.save(pictured("first", 1))
    await store.save(replace(pictured("second", 1), blobs={}))
    assert (await store.check()).ok


async def test_200_tasks_save_and_read_at_once(store: SqlStore) -> None:
    async def one(index: int) -> None:
        made = pictured(f"r{index}", index % 5, index)
        await store.save(made)
        assert await store.load(made.rollout_id) == replace(made, blobs={})

    await asyncio.gather(*(one(index) for index in range(200)))
    found = await store.check()
    assert (found.rollouts, found.blobs, found.ok) == (200, 200, True)


async def test_saves_larger_than_a_transaction_are_spread_and_kept(store: SqlStore) -> None:
    large = [rollout(f"r{index}", private={"blob": f"{index}" * 2**20}) for index in range(4)]
    large += [rollout(f"e{index}", events=[{"text": "é" * (5 * 2**20)}]) for index in range(4)]
    await asyncio.gather(*(store.save(one) for one in large))
    assert await store.load("e3") == large[-1]
    assert (await store.check()).rollouts == 8


async def test_close_writes_what_waits_and_then_refuses(address: str) -> None:
    store = opened(address)
    saves = [asyncio.create_task(store.save(rollout(f"r{index}"))) for index in range(300)]
    await asyncio.sleep(0)  # all of them are in the queue now
    await store.close()
    await store.close()
    assert await asyncio.gather(*saves) == [None] * 300
    for refused in (store.save(rollout("late")), store.load("r1"), store.recent(), store.check()):
        with pytest.raises(StoreError, match="closed"):
            await refused
    if address != "memory":
        again = opened(address)
        assert (await again.check()).rollouts == 300
        await again.close()


# -- lists and pruning --------------------------------------------------------------------------------------------------


async def test_a_query_lists_newest_first_and_goes_on_after_a_row(store: SqlStore) -> None:
    for number in range(8):
        policy = {"name": "gold" if number % 2 else "model", "model": "m"}
        when = 100.0 + number // 2  # pairs that began at one time
        await store.save(rollout(f"r{number}", created_at=when, policy=policy, tokens=number, cost=number / 8))
    await store.save(rollout("other", app="another", created_at=500.0))
    every = await store.query(RolloutQuery(app="adder"))
    assert [row.rollout_id for row in every] == ["r7", "r6", "r5", "r4", "r3", "r2", "r1", "r0"]
    assert (every[0].tokens, every[0].cost, every[0].model, every[0].policy) == (7, 0.875, "m", "gold")
    assert await store.query(RolloutQuery(app="adder", limit=3)) == every[:3]
    for place, row in enumerate(every):
        after = RolloutQuery(app="adder", before=(row.created_at, row.rollout_id))
        assert await store.query(after) == every[place + 1 :]
    assert [row.rollout_id for row in await store.query(RolloutQuery(policy="model", limit=2))] == ["r6", "r4"]
    with pytest.raises(StoreError):
        await store.query(RolloutQuery(limit=0))


async def test_pruning_removes_the_old_of_one_app_and_pictures_that_nobody_shows(store: SqlStore) -> None:
    for number in range(6):
        kept = pictured(f"r{number}", number, 99)  # a picture of its own, and one that all show
        await store.save(replace(kept, created_at=float(number)))
    await store.save(replace(pictured("other", 0), app="another", created_at=0.0))
    tickets = store.coordinator(SystemClock())
    if tickets is not None:
        assert await tickets.claim(IdempotencyRecord("r1", "body", time.time())) is None
        assert await tickets.claim(IdempotencyRecord("r2", "body", time.time() - 90_000)) is None  # over a day ago
    held = 0 if tickets is None else 1
    assert await store.prunable("adder", before=3.0) == 3 - held
    assert await store.prunable("adder", keep=6) == await store.prunable("adder", keep=1000) == 0
    assert await store.prune("adder", before=3.0) == 3 - held
    assert await store.prune("adder", keep=2) == 1
    assert await store.prune("adder", keep=2) == await store.prunable("adder", keep=2) == 0
    with pytest.raises(StoreError, match="must keep at least 1"):
        await store.prune("adder", keep=0)
    assert await store.apps() == ["adder", "another"]
    left = {row.rollout_id for row in await store.query(RolloutQuery())}
    assert left == {"r4", "r5", "other"} | ({"r1"} if held else set())
    assert (await store.check()).ok
    usage = await store.usage()
    assert [(item.app, item.rollouts) for item in usage.environments] == [("adder", 2 + held), ("another", 1)]
    assert usage.pictures == (5 if held else 4) and usage.pictures_bytes > 0 and usage.events_bytes > 0
    assert usage.records == held
    for shade in (0, 4, 5, 99):
        assert await store.blob(Image(png(shade)).hash) is not None
    for shade in (2, 3):
        assert await store.blob(Image(png(shade)).hash) is None
    if tickets is not None:
        await tickets.close()


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        (RolloutQuery(app="adder"), "rollouts_by_app"),
        (RolloutQuery(app="adder", before=(1.0, "r")), "rollouts_by_app"),
        (RolloutQuery(app="adder", key_label="a"), "rollouts_by_key_label"),
        (RolloutQuery(app="adder", key_label="a", before=(1.0, "r")), "rollouts_by_key_label"),
        (RolloutQuery(app="adder", key_label="a", run_id="run"), "rollouts_by_run"),
        (RolloutQuery(app="adder", key_label="a", group_id="g"), "rollouts_by_group"),
    ],
)
def test_list_query_uses_an_index(tmp_path: Path, wanted: RolloutQuery, index: str) -> None:
    SqliteStore(tmp_path / "r.db")._finish()
    statement = matching(SUMMARY, wanted).compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True})
    with closing(sqlite3.connect(tmp_path / "r.db")) as file:
        plan = [str(row[3]) for row in file.execute(f"EXPLAIN QUERY PLAN {statement}")]
    assert f"USING INDEX {index} " in plan[0]
    few = wanted.run_id is not None or wanted.group_id is not None
    assert few or len(plan) == 1, plan


@pytest.mark.server
async def test_saving_pictures_goes_on_while_others_are_pruned(shared_address: str) -> None:
    store, other = opened(shared_address), opened(shared_address)
    await store.save(pictured("first", 1, 2, 3))

    async def prune() -> None:
        for _ in range(10):
            await other.prune("adder", keep=1)

    async def save() -> None:
        for number in range(60):
            await store.save(replace(pictured(f"r{number}", 1, 2, 3), created_at=2e9 + number))

    await asyncio.gather(prune(), save())
    assert (await store.check()).missing_blobs == []
    await store.close()
    await other.close()
