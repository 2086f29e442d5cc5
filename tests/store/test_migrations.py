"""A store of every earlier schema opens, as its own release wrote it.

`schemas/NNNN.db.gz` was written by the last commit before the next schema change, with that commit's own code, and has the
rollouts of its `stored_samples.py`: `plain`, `pictured`, `failed`, and a ticket for `plain`. The one of release 0.1.0 (0002)
is the evaluation in `release_0_1_0`.
"""

from __future__ import annotations

import asyncio
import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from stored_samples import pictured, rollout

from taskapp_kit.contract.protocols import RolloutQuery
from taskapp_kit.store.schema import MIGRATIONS
from taskapp_kit.store.sqlite import SqliteStore

HERE = Path(__file__).parent
STORED = {path.name.partition(".")[0]: path for path in sorted((HERE / "schemas").glob("*.db.gz"))}
RELEASE = HERE / "release_0_1_0" / "evaluation" / "rollouts.db"
NAMES = [name for name, _ in MIGRATIONS]


def tables(path: Path) -> dict[str, object]:
    """The columns of each table and index, in order."""
    with closing(sqlite3.connect(path)) as file:
        names = file.execute("SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'").fetchall()
        return {
            name: [row[1:4] if kind == "table" else row[2] for row in file.execute(f"PRAGMA {kind}_info({name})")]
            for kind, name in names
        }


def test_there_is_a_store_of_every_schema_but_the_newest() -> None:
    assert sorted([*STORED, "0002"]) == [name[:4] for name in NAMES[:-1]], (
        "add the one of the schema before a new change"
    )


@pytest.mark.parametrize("schema", [*STORED, "0002"])
def test_it_is_brought_up_to_date(schema: str, tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    path.write_bytes(RELEASE.read_bytes() if schema == "0002" else gzip.decompress(STORED[schema].read_bytes()))
    with closing(sqlite3.connect(path)) as file:
        before = [name for (name,) in file.execute("SELECT name FROM taskapp_migrations ORDER BY name")]
        ids = {name for (name,) in file.execute("SELECT rollout_id FROM rollouts")}
        tickets = file.execute("SELECT count(*) FROM tickets").fetchone() if len(before) > 1 else (0,)
    assert before == [name for name in NAMES if name[:4] <= schema]

    async def use() -> None:
        store = SqliteStore(path)
        assert (await store.check()).ok
        rows = await store.listed(RolloutQuery())
        assert {row.rollout_id for row in rows} == ids
        for row in rows:
            stored = await store.load(row.rollout_id)
            assert stored is not None and stored.events and stored.status == row.status
        assert {row.status for row in await store.listed(RolloutQuery(status="failed"))} == {"failed"}
        new = rollout("new", created_at=2e9, observation_digest="c" * 64, tokens=7, cost=0.5)
        await store.save(new)
        await store.save(pictured("shown", 1, 3))
        assert await store.load("new") == new
        assert (await store.listed(RolloutQuery(), "cost"))[0].rollout_id == "new"
        usage = await store.usage()
        assert usage.rollouts == len(ids) + 2 and usage.records == tickets[0]
        assert (await store.check()).ok
        await store.close()

    asyncio.run(use())
    SqliteStore(tmp_path / "fresh.db")._finish()
    old, fresh = tables(path), tables(tmp_path / "fresh.db")
    assert {name: sorted(map(str, parts)) for name, parts in old.items()} == {  # type: ignore[call-overload]
        name: sorted(map(str, parts))
        for name, parts in fresh.items()  # type: ignore[call-overload]
    }
