from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.declare.specs import AppSpec
from taskapp_kit.errors import StoreError, TaskAppUnreachable
from taskapp_kit.evaluate.plan import EvalPlan
from taskapp_kit.evaluate.progress import Progress
from taskapp_kit.evaluate.runners import EvaluatedApp
from taskapp_kit.records.protocols import RolloutRow
from taskapp_kit.records.seeds import Seeds
from taskapp_kit.store import open_store


def plan(seeds: str = "0-19", repeats: int = 2) -> EvalPlan:
    return EvalPlan(Seeds.read(seeds), [{"policy": "presser"}], repeats=repeats)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "results.jsonl").read_text().splitlines()]


class Watching:
    """Keeps what it sees, and how many lines were on the disk then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: list[tuple[RolloutRow, int]] = []
        self.begun: tuple[int, int] = (0, 0)

    def begin(self, *, asked: int, done: int) -> None:
        self.begun = asked, done

    def result(self, result: RolloutRow, policy: str) -> None:
        self.seen.append((result, (self.path / "results.jsonl").read_bytes().count(b"\n")))

    def tick(self, progress: Progress) -> None:
        pass


class Breaking:
    """A player of our own: scores a rollout by its seed, and is gone after `until` of them."""

    spec: AppSpec | None = None

    def __init__(self, until: int = 1_000_000) -> None:
        self.until = until
        self.keys: list[str] = []
        self.under_way = self.most = 0

    async def about(self, environment: str | None) -> EvaluatedApp:
        return EvaluatedApp("app", "1", "hash", "env")

    async def check(self, plan: EvalPlan) -> None:
        pass

    async def open(self) -> None:
        pass

    async def play(self, request: Any, *, key: str, progress: Progress) -> RolloutRow:
        self.keys.append(key)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0.001 * (request.env.seed % 3))
        self.under_way -= 1
        if len(self.keys) > self.until:
            raise TaskAppUnreachable("Nothing answers.")
        return RolloutRow(
            "terminated", "r", seed=request.env.seed, reward=float(request.env.seed), length=1, digest="d"
        )

    async def close(self) -> None:
        pass


def test_every_rollout_once_failures_apart_and_the_aggregates(evaluations: Any, tmp_path: Path) -> None:
    watch = Watching(tmp_path)
    summary = evaluations.run(tmp_path, plan(), watch=watch)
    told = lines(tmp_path)
    assert Counter((item["key"]["seed"], item["key"]["sample"]) for item in told) == Counter(
        (seed, sample) for seed in range(20) for sample in range(2)
    )
    assert summary["rollouts"] == {
        "asked": 40, "done": 40, "terminated": 32, "truncated": 0, "failed": 8, "scored": 28, "undefined": 4,
        "without_valid_action": 0,
    }  # fmt: skip
    assert summary["failures"] == {"environment": {"environment_raised": 8}}
    odd = [seed % 2 for seed in range(20) if seed % 10 not in (3, 4, 5)]
    assert summary["reward"]["mean"] == sum(odd) / len(odd)
    assert summary["criteria"]["odd"]["n"] == 28
    assert summary["aggregates"] == {"press": {"share": 0.5, "first": 0.0}}
    assert summary["published"] == {"press": {"them": {"share": 0.5, "more": 1.25}}}
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert watch.begun == (40, 0)
    assert len(watch.seen) == 40
    assert all(on_disk >= place for place, (_, on_disk) in enumerate(watch.seen, start=1))
    assert "hidden" not in (tmp_path / "results.jsonl").read_text()


def test_broken_off_and_taken_up_it_is_the_same_summary(evaluations: Any, tmp_path: Path) -> None:
    whole = evaluations.run(tmp_path / "whole", plan(), concurrency=1)
    evaluations.run(tmp_path / "pieces", plan(), concurrency=8)
    results = tmp_path / "pieces" / "results.jsonl"
    kept = results.read_bytes().splitlines(keepends=True)
    results.write_bytes(b"".join(kept[:11]) + kept[11][:30])
    again = evaluations.run(tmp_path / "pieces", plan())
    assert len(lines(tmp_path / "pieces")) == 40
    for summary in (whole, again):
        del summary["timing"]
    assert json.dumps(again) == json.dumps(whole)


def test_failed_ones_are_played_again_when_asked(evaluations: Any, tmp_path: Path) -> None:
    evaluations.run(tmp_path, plan("0-9", 1))
    assert len(lines(tmp_path)) == 10
    evaluations.run(tmp_path, plan("0-9", 1))
    assert len(lines(tmp_path)) == 10
    watch = Watching(tmp_path)
    summary = evaluations.run(tmp_path, plan("0-9", 1), retry=True, watch=watch)
    assert watch.begun == (10, 8)
    assert [result.seed for result, _ in watch.seen] == [3, 4]
    assert (summary["rollouts"]["done"], summary["rollouts"]["failed"]) == (10, 2)


def test_a_server_that_goes_away_ends_it_and_counts_no_failure(evaluations: Any, tmp_path: Path) -> None:
    gone = Breaking(until=7)
    with pytest.raises(TaskAppUnreachable):
        evaluations.run(tmp_path, plan(), gone)
    kept = lines(tmp_path)
    assert 0 < len(kept) <= 7
    assert not (tmp_path / "summary.json").exists()
    back = Breaking()
    summary = evaluations.run(tmp_path, plan(), back)
    assert len(back.keys) == 40 - len(kept)
    assert len({*gone.keys, *back.keys}) == 40  # those under way when it broke come again under the same key
    assert summary["rollouts"]["done"] == 40
    assert summary["reward"]["mean"] == 9.5
    assert summary["aggregates"] is None


def test_so_many_at_once(evaluations: Any, tmp_path: Path) -> None:
    player = Breaking()
    evaluations.run(tmp_path, plan(), player, concurrency=5)
    assert 2 <= player.most <= 5


def test_whole_rollouts_are_in_the_store_under_the_results_ids(evaluations: Any, tmp_path: Path) -> None:
    place = str(tmp_path / "rollouts.db")
    evaluations.run(tmp_path, plan("0-4", 1), evaluations.here(store=lambda: open_store(place)))

    async def stored() -> list[str]:
        store = open_store(place)
        try:
            rows = [await store.load(item["rollout_id"]) for item in lines(tmp_path)]
            return [row.status for row in rows if row is not None]
        finally:
            await store.close()

    assert Counter(asyncio.run(stored())) == {"terminated": 3, "failed": 2}


@pytest.mark.process
def test_workers_play_the_same(evaluations: Any, tmp_path: Path) -> None:
    here = evaluations.run(tmp_path / "threads", plan())
    there = evaluations.run(tmp_path / "workers", plan(), evaluations.here(workers=1))
    for summary in (here, there):
        del summary["timing"]
    assert here == there


def test_an_aggregate_that_breaks_costs_no_result(tmp_path: Path, evaluations: Any) -> None:
    from taskapp_kit import TaskApp
    from taskapp_kit.config import Settings
    from taskapp_kit.declare.discovery import find_app
    from taskapp_kit.evaluate.runners import LocalRunner

    from .conftest import FLAKY

    text = Path(FLAKY).read_text().replace("len(rollouts), ", "0, ")
    (tmp_path / "broken.py").write_text(text)
    app: TaskApp = find_app(str(tmp_path / "broken.py"))
    summary = evaluations.run(tmp_path / "out", plan("0-2", 1), LocalRunner(app, Settings()))
    assert summary["aggregates"] is None
    assert "aggregate 'press'" in summary["aggregates_problem"]
    assert "ZeroDivisionError" in summary["aggregates_problem"]
    assert summary["rollouts"]["done"] == 3


def test_results_that_cannot_be_written_end_it(evaluations: Any, tmp_path: Path) -> None:
    import resource
    import signal

    old, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, old[1]))
    try:
        with pytest.raises(StoreError, match=r"results\.jsonl .*written"):
            evaluations.run(tmp_path, plan(), Breaking())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, ignored)
    assert evaluations.run(tmp_path, plan(), Breaking())["rollouts"]["done"] == 40
    assert len(lines(tmp_path)) == 40
