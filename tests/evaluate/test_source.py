"""Stored rollouts from a directory, a store and a server: the same rows in the same orders."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from taskapp_kit.errors import ConfigError, StoreError
from taskapp_kit.evaluate.plan import EvalPlan
from taskapp_kit.evaluate.source import open_source
from taskapp_kit.records.protocols import RolloutQuery, RolloutRow, RowOrder
from taskapp_kit.records.seeds import Seeds
from taskapp_kit.rollout.details import details_of
from taskapp_kit.rollout.source import RolloutSource
from taskapp_kit.store import open_store
from tests.evaluate.conftest import FLAKY, Evaluations


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seeds 0 to 9, twice each: 3 and 4 failed, 5 has no reward, odd ones have 1, even ones 0."""
    path = tmp_path_factory.mktemp("source") / "e"
    runs = Evaluations()
    plan = EvalPlan(Seeds.read("0-9"), [{"policy": "presser"}], repeats=2)
    runs.run(path, plan, runs.here(store=lambda: open_store(str(path / "rollouts.db"))))
    return path


def rows(
    reference: str | RolloutSource, query: RolloutQuery | None = None, order: RowOrder | None = None, limit: int | None = None
) -> list[RolloutRow]:  # fmt: skip
    async def read() -> list[RolloutRow]:
        source = open_source(reference) if isinstance(reference, str) else reference
        try:
            return [row async for row in source.rows(query, order, limit=limit)]
        finally:
            await source.close()

    return asyncio.run(read())


def seeds(found: list[RolloutRow]) -> list[int]:
    return [row.seed for row in found]


def test_a_directory_lists_by_seed_and_sample(directory: Path) -> None:
    found = rows(str(directory))
    assert [(row.seed, row.sample) for row in found] == [(seed, sample) for seed in range(10) for sample in (0, 1)]
    assert {row.policy for row in found} == {"presser"} and {row.split for row in found} == {"train"}
    failed, unscored, odd = found[6], found[10], found[2]
    assert (failed.status, failed.boundary, failed.reward) == ("failed", "environment", None)
    assert failed.code and failed.message
    assert (unscored.reward, unscored.criteria) == (None, {"odd": None})
    assert (odd.reward, odd.criteria, odd.length, odd.turns, odd.stop_reason) == (
        1.0,
        {"odd": 1.0},
        1,
        1,
        "environment",
    )
    assert odd.created_at is not None and odd.seconds is not None


@pytest.mark.parametrize("order", ["worst", "best", "length"])
def test_the_orders_of_directory_and_store_agree(directory: Path, order: RowOrder) -> None:
    database = str(directory / "rollouts.db")
    assert [row.rollout_id for row in rows(str(directory), None, order)] == [
        row.rollout_id for row in rows(database, None, order)
    ]
    first = rows(database, None, order, 3)
    assert [row.rollout_id for row in first] == [row.rollout_id for row in rows(str(directory), None, order, 3)]
    assert len(first) == 3


def test_worst_and_best_leave_out_what_has_no_reward(directory: Path) -> None:
    worst, best = rows(str(directory), None, "worst"), rows(str(directory), None, "best")
    assert seeds(worst)[:4] == [0, 0, 2, 2] and seeds(best)[:4] == [1, 1, 7, 7]
    assert len(worst) == 14 and not {3, 4, 5} & set(seeds(worst))


@pytest.mark.parametrize("place", ["", "rollouts.db"])
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (RolloutQuery(status="failed"), {3, 4}),
        (RolloutQuery(boundary="environment", limit=1), {3, 4}),
        (RolloutQuery(boundary="policy"), set()),
        (RolloutQuery(reward_below=0.5), {0, 2, 6, 8}),
        (RolloutQuery(reward_above=0.5, policy="presser", environment="flaky"), {1, 7, 9}),
        (RolloutQuery(policy="another"), set()),
    ],
)
def test_filters(directory: Path, place: str, query: RolloutQuery, expected: set[int]) -> None:
    found = rows(str(directory / place), query)
    assert set(seeds(found)) == expected and len(found) == 2 * len(expected)


def test_a_store_lists_all_of_them_newest_first(directory: Path) -> None:
    found = rows(f"sqlite:///{directory / 'rollouts.db'}")
    times = [row.created_at or 0.0 for row in found]
    assert len(found) == 20 and times == sorted(times, reverse=True)
    assert {row.sample for row in found} == {0, 1}
    assert next(row for row in found if row.seed == 3).message
    assert rows(str(directory / "rollouts.db"), limit=0) == []


def test_lines_of_earlier_releases(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((directory / "config.json").read_text())
    entry = json.loads((directory / "results.jsonl").read_text().splitlines()[0])
    for name in ("observation_digest", "metrics", "usage", "criteria", "seconds", "cost", "created_at"):
        entry.pop(name)
    failed = {**entry, "status": "failed", "reward": None, "environment": None, "split": None, "length": None}
    again = {**entry, "reward": 0.25}
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (failed, again)) + '{"cut')
    (row,) = rows(str(tmp_path))
    assert (row.reward, row.criteria, row.tokens, row.cost, row.created_at) == (0.25, {}, None, None, None)


@pytest.mark.parametrize("torn", [b'{"key": {"se', b"\0\0\0\n"], ids=["cut off", "zeros of a lost page"])
def test_a_last_line_that_eval_would_cut_off_is_no_row(directory: Path, tmp_path: Path, torn: bytes) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    with (copy / "results.jsonl").open("ab") as lines:
        lines.write(torn)
    assert rows(str(copy)) == rows(str(directory))


def test_whole_rollouts(directory: Path) -> None:
    async def read(reference: str) -> str:
        source = open_source(reference)
        try:
            first = [row async for row in source.rows(limit=1)][0]
            with pytest.raises(ConfigError, match="no rollout"):
                await source.load("0" * 32)
            assert await source.blob("0" * 64) is None
            return details_of(await source.load(first.rollout_id)).stored.rollout_id
        finally:
            await source.close()

    assert asyncio.run(read(str(directory))) and asyncio.run(read(str(directory / "rollouts.db")))


def test_what_is_no_source(tmp_path: Path, directory: Path) -> None:
    with pytest.raises(ConfigError, match="not an evaluation"):
        open_source(str(tmp_path))
    with pytest.raises(StoreError, match="does not exist"):
        open_source(str(tmp_path / "absent.db"))
    assert FLAKY
    (tmp_path / "config.json").write_text((directory / "config.json").read_text())
    with pytest.raises(ConfigError, match="has no rollouts.db"):
        asyncio.run(open_source(str(tmp_path)).load("0" * 32))
    (tmp_path / "results.jsonl").write_text("[1]\n")
    with pytest.raises(StoreError, match="line 1"):
        rows(str(tmp_path))
