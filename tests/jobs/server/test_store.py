"""Jobs, events, points and rollouts as they are kept."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from taskapp_kit.errors import ConfigError, Saturated, StoreError
from taskapp_kit.jobs.server.data_files import JobDatabase, store_path
from taskapp_kit.jobs.server.engine import REPEATED, CurvePoint, Event, RolloutOutcome
from taskapp_kit.jobs.server.job_views import event_view
from taskapp_kit.jobs.server.schema import APPLIED, QUEUED, SUCCEEDED, JobRow
from taskapp_kit.jobs.server.store import JobStore
from taskapp_kit.store.sqlite import SqliteStore
from tests.jobs.server.exchange import job_row

pytestmark = pytest.mark.anyio


@pytest.fixture
async def records() -> AsyncIterator[JobStore]:
    store = JobStore(JobDatabase(None))
    yield store
    await store.close()


async def job_of(records: JobStore, job_id: str = "rl_1") -> JobRow:
    job = await records.job(job_id)
    assert job is not None
    return job


async def test_events_are_numbered_without_gaps_also_by_many_at_once(records: JobStore) -> None:
    await records.add(job_row(), {}, Event("rl.job.created", "made"))
    await asyncio.gather(*(records.write("rl_1", Event("a", str(n)), Event("b", str(n))) for n in range(20)))
    events = await records.events("rl_1", since_seq=0, limit=100)
    assert [told.seq for told in events] == list(range(1, 42))
    for one, two in zip(events[1::2], events[2::2], strict=True):
        assert (one.event.type, two.event.type) == ("a", "b")
        assert one.event.message == two.event.message


async def test_a_job_ends_once(records: JobStore) -> None:
    await records.add(job_row(), {})
    assert await records.write("rl_1", Event("rl.job.completed", ""), status=SUCCEEDED, final_reward=0.5)
    assert not await records.write("rl_1", Event("rl.job.failed", ""), status="failed")
    assert not await records.write("nobody", Event("x", ""))
    job = await job_of(records)
    assert (job.status, job.final_reward) == (SUCCEEDED, 0.5)
    assert len(await records.events("rl_1", since_seq=0, limit=9)) == 1


async def test_what_cannot_be_written_whole_is_not_written_at_all(records: JobStore) -> None:
    await records.add(job_row(), {})
    for wrong in ({"not": {1, 2}}, {"not": float("nan")}):  # not the store's fault, so waiting would not help
        with pytest.raises((TypeError, ValueError)):
            await records.write("rl_1", Event("told", ""), state=wrong)
        with pytest.raises((TypeError, ValueError)):
            await records.write("rl_1", Event("told", "", data=wrong), total=5)
    assert await records.events("rl_1", since_seq=0, limit=9) == []


async def test_a_place_is_taken_once(records: JobStore) -> None:
    await records.add(job_row(), {})
    first = RolloutOutcome("train", 1, 0, 0, 7, "terminated", 1.0)
    await records.store("rl_1", first)
    await records.store("rl_1", RolloutOutcome("train", 1, 0, 0, 7, "failed"))
    assert await records.stored("rl_1", "train", 1) == [first]
    job = await job_of(records)
    assert job.completed == 1


async def test_one_rollout_id_counts_at_one_place_of_job_row(records: JobStore) -> None:
    for job_id in ("rl_1", "rl_2"):
        await records.add(job_row(job_id), {})
    first = RolloutOutcome("train", 1, 0, 0, 7, "terminated", 1.0, rollout_id="ro_1")
    assert await records.store("rl_1", first) == first
    assert await records.store("rl_1", first) == first, "the same place again is the same rollout"
    second = await records.store("rl_1", replace(first, iteration=2))
    assert (second.failed, second.reward, second.code, second.rollout_id) == (True, None, REPEATED, "ro_1")
    assert await records.stored("rl_1", "train", 2) == [second]
    assert await records.store("rl_2", first) == first, "another job"
    for sample in (1, 2):
        unnamed = replace(first, sample=sample, rollout_id="")
        assert await records.store("rl_1", unnamed) == unnamed


@pytest.mark.parametrize("most", [1, 2, 5, 7, 20])
async def test_curves_are_thinned_evenly_and_keep_their_last_point(records: JobStore, most: int) -> None:
    await records.add(job_row(), {})
    points = [CurvePoint("loss", float(step), step, "train", 1) for step in range(1, 14)]
    points += [CurvePoint("eval_reward", 0.5, step, "eval", 1) for step in (0, 5, 13)]
    await records.write("rl_1", points=points)
    found = [row.point for row in await records.curves("rl_1", most=most)]
    assert [point.step for point in found] == sorted(point.step for point in found)
    for name, size, last in (("loss", 13, 13), ("eval_reward", 3, 13)):
        steps = [point.step for point in found if point.name == name]
        assert steps[-1] == last and len(steps) <= most and len(steps) > min(size, most) / 2
        assert name != "loss" or len({after - before for before, after in itertools.pairwise(steps)}) <= 1


@pytest.mark.parametrize("limit", [1, 3, 4, 5, 7, 100])
async def test_pages_of_points_lose_none(records: JobStore, limit: int) -> None:
    await records.add(job_row(), {})
    for step in range(1, 8):
        names = ["reward", "failed", "seconds"] if step != 4 else ["a", "b", "c", "d", "e"]
        await records.write("rl_1", points=[CurvePoint(name, 1.0, step, "train", 1) for name in names])
    found: list[tuple[int, str]] = []
    after = -1
    while page := await records.points("rl_1", after_step=after, limit=limit):
        found += [(drawn.point.step, drawn.point.name) for drawn in page]
        after = page[-1].point.step
    assert len(found) == len(set(found)) == 6 * 3 + 5
    latest = await records.points("rl_1", after_step=None, limit=limit)
    steps = sorted({drawn.point.step for drawn in latest})
    assert steps == list(range(steps[0], 8)), "the last ones, and no hole"
    assert len(latest) <= max(limit, 3)


async def test_jobs_and_rollouts_may_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "all.db"
    store = JobStore(JobDatabase(path))
    await store.add(job_row(), {})
    await store.close()
    await SqliteStore(path).close()
    store = JobStore(JobDatabase(path))
    assert await store.job("rl_1") is not None
    await store.close()
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_file_of_a_newer_release_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    await JobStore(JobDatabase(path)).close()
    database = JobDatabase(path)
    insert = APPLIED.insert().values(name="0099_later", applied_at=1.0)
    database.transact_now(lambda connection: connection.execute(insert), writes=True)
    with pytest.raises(StoreError, match="0099_later"):
        JobStore(database)
    database.close()


async def iteration(records: JobStore, number: int, reward: float) -> None:
    """Store an iteration of two rollouts, as an engine does it."""
    for sample in range(2):
        rollout_id = f"ro_{number}_{sample}_{reward}"
        await records.store(
            "rl_1", RolloutOutcome("train", number, 0, sample, 7, "terminated", reward, rollout_id=rollout_id)
        )
    step = Event("rl.train.step", str(number), data={"step": number, "reward": reward})
    points = [CurvePoint("reward", reward, number, "train", 1)]
    await records.write("rl_1", step, points=points, state={"done": number}, metrics={"reward": reward})


async def test_a_job_goes_back_to_a_position_and_nothing_counts_twice(records: JobStore) -> None:
    await records.add(job_row(total=6), {}, Event("rl.job.created", ""))
    positions = []
    for number in (1, 2, 3):
        await iteration(records, number, 0.1 * number)
        positions.append(await records.position("rl_1"))
    await records.write("rl_1", Event("rl.checkpoint.saved", ""))
    await records.store("rl_1", RolloutOutcome("train", 4, 0, 0, 7, "terminated", 0.4))
    await records.write("rl_1", Event("rl.job.resumed", ""))
    assert positions == [2, 3, 4]

    for reward in (0.7, 0.8):  # twice to the same position
        back = Event("rl.train.resumed", "")
        assert await records.supersede("rl_1", 2, back, state={"done": 1}, metrics={"reward": 0.1})
        job = await job_of(records)
        assert (job.completed, job.metrics) == (2, {"reward": 0.1})
        assert (await records.work("rl_1"))[1] == {"done": 1}
        assert await records.stored("rl_1", "train", 2) == []
        assert [row.point.step for row in await records.points("rl_1", after_step=None, limit=9)] == [1]
        assert [(row.iteration, row.rollouts) for row in await records.iterations("rl_1")] == [(1, 2)]
        await iteration(records, 2, reward)

    job = await job_of(records)
    assert job.completed == 4
    points = await records.points("rl_1", after_step=-1, limit=9)
    assert [(row.point.step, row.point.value) for row in points] == [(1, 0.1), (2, 0.8)]
    assert await records.curves("rl_1", most=9) == points
    steps = await records.last_events("rl_1", ["rl.train.step"], 9)
    assert [row.event.data["reward"] for row in steps] == [0.1, 0.8]
    events = await records.events("rl_1", since_seq=0, limit=99)
    assert [(row.event.type.split(".", 1)[1], row.superseded_by) for row in events] == [
        ("job.created", 0), ("train.step", 0), ("train.step", 7), ("train.step", 7), ("checkpoint.saved", 0),
        ("job.resumed", 0), ("train.resumed", 9), ("train.step", 9), ("train.resumed", 0), ("train.step", 0),
    ]  # fmt: skip
    assert [event_view("rl_1", row)["superseded_by"] for row in events[1:3]] == [None, 7]

    assert await records.supersede("rl_1", 0, back, state={}, metrics={})
    assert await records.points("rl_1", after_step=-1, limit=9) == []
    job = await job_of(records)
    assert job.completed == 0


async def test_a_superseded_rollout_does_not_count_as_the_first_with_its_id(records: JobStore) -> None:
    await records.add(job_row(), {}, Event("rl.job.created", ""))
    one = RolloutOutcome("train", 1, 0, 0, 7, "terminated", 1.0, rollout_id="ro_1")
    await records.store("rl_1", one)
    await records.supersede("rl_1", 0, Event("rl.train.resumed", ""), state={}, metrics={})
    other_place = replace(one, sample=1)
    assert await records.store("rl_1", other_place) == other_place
    assert (await records.store("rl_1", one)).code == REPEATED


async def test_only_a_job_that_failed_or_was_cancelled_is_restarted(records: JobStore) -> None:
    for number, status in enumerate(("failed", "cancelled", SUCCEEDED, None)):
        job_id = f"rl_{number}"
        await records.add(job_row(job_id), {})
        if status is not None:
            await records.write(job_id, status=status, error="It broke.", cancelling=status == "cancelled")
        restarts = status in ("failed", "cancelled")
        assert await records.restart(job_id, Event("rl.job.resumed", ""), most=9) == restarts
        job = await job_of(records, job_id)
        assert job.status == (QUEUED if restarts or status is None else status)
        if restarts:
            assert (job.error, job.cancelling) == (None, False)
        assert not await records.restart(job_id, Event("rl.job.resumed", ""), most=9)
        events = await records.events(job_id, since_seq=0, limit=9)
        assert len(events) == restarts
    assert not await records.restart("unknown", Event("rl.job.resumed", ""), most=9)
    await records.write("rl_0", status="failed")
    with pytest.raises(Saturated):
        await records.restart("rl_0", Event("rl.job.resumed", ""), most=1)
    supersede = records.supersede("rl_0", 0, Event("x", ""), state={}, metrics={})
    assert not await supersede, "a job that is over"


def test_addresses_of_stores() -> None:
    assert store_path("none") is store_path("memory") is store_path("sqlite://") is None
    assert store_path("sqlite:///a/b.db") == Path("a/b.db")
    assert store_path("sqlite:////a/b.db") == Path("/a/b.db")
    assert store_path("jobs.db") == Path("jobs.db")
    for wrong in ("", "postgresql://u:secret@h/d", "sqlite://a.db", "sqlite:///a.db?x=1"):
        with pytest.raises(ConfigError) as refused:
            store_path(wrong)
        assert "secret" not in str(refused.value)
