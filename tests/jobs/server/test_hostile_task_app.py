"""A task app that answers anything, and jobs that ask for too much: no number that is none, no text without a bound."""

from __future__ import annotations

import asyncio
import json
import threading
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

from taskapp_kit.jobs.server.data_files import JobDatabase
from taskapp_kit.jobs.server.engine import Event, JobDocument, Ledger, RolloutOutcome
from taskapp_kit.jobs.server.rewards import MAX_CAUSES, MAX_SCORES, causes, scores_of, summarise
from taskapp_kit.jobs.server.rollout_plan import read_plan
from taskapp_kit.jobs.server.store import JobStore
from tests.jobs.server.exchange import (
    ScriptedApp,
    ScriptedEngine,
    a_config,
    backend,
    episode,
    failure,
    job_row,
    played,
    serving,
)

pytestmark = pytest.mark.server


def raw(text: str) -> Any:
    return 200, Response(text, media_type="application/json")


UNREADABLE = {
    "a text": '{"metrics": {"mean_return": 1}, "reward": "1.0"}',
    "true": '{"metrics": {"mean_return": 1}, "reward": true}',
    "a list": '{"metrics": {"mean_return": 1}, "reward": [1]}',
    "NaN": '{"metrics": {"mean_return": 1}, "reward": NaN}',
    "Infinity": '{"metrics": {"mean_return": 1}, "reward": -Infinity}',
    "beyond all": '{"metrics": {"mean_return": 1}, "reward": 1e999}',
    "1e308": '{"metrics": {"mean_return": 1}, "reward": 1e308}',
    "many digits": '{"metrics": {"mean_return": 1}, "reward": 1' + "0" * 400 + "}",
    "a return of text": '{"metrics": {"mean_return": "1"}}',
    "a return of true": '{"metrics": {"mean_return": true}}',
    "aborted": '{"metrics": {}, "reward": 1.0, "aborted": true}',
    "no metrics": "{}",
    "metrics of text": '{"metrics": "1"}',
    "no object": "[1]",
    "nothing": "",
    "deep": '{"metrics": ' + "[" * 5000 + "]" * 5000 + "}",
    "half a surrogate": '{"metrics": {"mean_return": 1}, "reward": 1, "rollout_id": "\\ud800"}',
    "of another run": '{"metrics": {"mean_return": 1}, "reward": 1, "run_id": "rl_0000000000000000"}',
    "of another rollout": '{"metrics": {"mean_return": 1}, "reward": 1, "trace_correlation_id": "other"}',
    "of no run": '{"metrics": {"mean_return": 1}, "reward": 1, "run_id": 7}',
}


def test_an_answer_that_is_none_is_a_failure_and_no_number() -> None:
    """Each of them among good ones: they spoil no mean, and the engine goes on."""
    answers = iter(UNREADABLE.values())
    config = a_config(training={"batch_size": len(UNREADABLE), "group_size": 3})

    def play(body: dict[str, Any]) -> Any:
        return raw(next(answers)) if body["policy"]["config"]["sample"] == 0 else episode(0.5)

    status, events = played(ScriptedApp(play=play), config)
    assert (status["status"], status["final_reward"]) == ("succeeded", 0.5)
    assert status["results"]["rollouts"]["failed"] == len(UNREADABLE)
    assert set(status["results"]["rollouts"]["failures"]) <= {"unreadable_answer", "not_json"}
    assert [event["seq"] for event in events] == [1, 2, 3, 4]


def test_the_largest_rewards_have_a_mean_and_a_spread() -> None:
    rewards = iter([1e100, -1e100] * 2)
    config = a_config(judge={"enabled": True, "reward_blend": {"env": 1e9}})
    status, events = played(ScriptedApp(play=lambda _: episode(next(rewards))), config)
    assert status["status"] == "succeeded", status
    assert status["final_reward"] == 0.0
    assert events[-2]["data"]["reward_spread"] > 1e108


def test_what_the_answer_leaves_out_is_no_reason_to_refuse_it() -> None:
    answer = {"metrics": {"mean_return": 0.25}, "trace_correlation_id": None}
    status, _ = played(ScriptedApp(play=lambda _: (200, answer)))
    assert (status["status"], status["final_reward"]) == ("succeeded", 0.25)


def test_a_strangers_words_are_bounded_wherever_they_are_kept() -> None:
    numbers = iter(range(10_000))

    def play(body: dict[str, Any]) -> Any:
        number = next(numbers)
        if number % 2:
            return episode(rollout_id="x" * 100_000, status="y" * 100_000)
        status, answer = failure(code=f"code{number}" + "z" * 10_000, status=422)
        del answer["detail"]["error"]["boundary"]
        answer["detail"]["error"]["message"] = "w" * 100_000
        return status, answer

    config = a_config(training={"batch_size": 100, "group_size": 1})
    config["rollout"]["max_concurrent_rollouts"] = 1
    status, events = played(ScriptedApp(play=play), config)
    assert status["status"] == "succeeded"
    assert len(status["results"]["rollouts"]["failures"]) == MAX_CAUSES + 1
    assert sum(status["results"]["rollouts"]["failures"].values()) == 50
    assert max(len(json.dumps(event)) for event in events) < 10_000
    assert len(json.dumps(status)) < 10_000


def test_scores_are_bounded_however_a_stranger_names_them() -> None:
    criteria = [{"name": str(number), "score": 1} for number in range(1000)]
    assert len(scores_of({"metrics": {}, "scorecard": {"criteria": criteria}})) == MAX_SCORES
    rollouts = [
        RolloutOutcome("train", 1, place, 0, 0, "terminated", 1.0, scores={f"score_{place}": 1.0})
        for place in range(99)
    ]
    assert len(summarise(rollouts).scores) == MAX_SCORES


def test_causes_are_merged_without_losing_any() -> None:
    first = causes(f"c{n}" for n in range(30))
    assert first["others"] == 10
    again = causes(first, ["c1", "new", "others"])
    assert sum(again.values()) == 33
    assert len(again) <= MAX_CAUSES + 1


def test_splits_of_a_stranger_are_bounded() -> None:
    app = ScriptedApp()
    app.info = {"taskset": {"kind": "rows", "seeds": {"x" * 200: [0, 5], "small": [0, 5]}},
                "inference": {"policies": ["scripted"]}}  # fmt: skip
    assert played(app)[0]["status"] == "succeeded"
    assert {body["env"]["config"]["split"] for _, body in app.requests} == {"small"}


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ({"rollout": {"ops": ["env"] * 150_000 + ["agent"], "max_turns": 100_000}}, ("rollout", "ops")),
        ({"training": {"batch_size": 1000, "group_size": 1000}}, ()),
        ({"evaluation": {"instances": 200_000, "every_n_iters": 1, "seeds": [1]}}, ()),
    ],
)
def test_a_job_that_would_not_fit_into_memory_is_refused_at_once(
    config: dict[str, Any], place: tuple[str, ...]
) -> None:
    tracemalloc.start()
    plan, problems = read_plan(JobDocument("rl_1", "http://h", config))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (plan, list(problems)) == (None, [place])
    assert peak < 50_000_000


def test_a_million_rollouts_are_planned_without_being_listed() -> None:
    config = {
        "training": {"iterations_per_epoch": 499_000, "batch_size": 1, "group_size": 2},
        "evaluation": {"instances": 2, "every_n_iters": 499, "seeds": [1]},
    }
    tracemalloc.start()
    plan, problems = read_plan(JobDocument("rl_1", "http://h", config))
    assert plan is not None, problems
    assert plan.total == 1_000_000
    assert (plan.units, plan.unit(plan.units - 1).phase, plan.unit(plan.units - 1).number) == (500_000, "eval", 499_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


@pytest.fixture
async def records(tmp_path: Path) -> AsyncIterator[JobStore]:
    store = JobStore(JobDatabase(tmp_path / "jobs.db"))
    await store.add(job_row(), {"config": {"data": {"seeds": list(range(2_000))}}})
    yield store
    await store.close()


@pytest.mark.anyio
async def test_looking_at_a_job_does_not_count_its_rollouts_or_read_its_document(records: JobStore) -> None:
    """So that a status, a list or a stream is as quick after many rollouts and events as after one."""
    rows = [
        ("rl_1", "train", 1, n, 0, 0, "terminated", 1.0, "", None, "", "", 0.1, 1.0, 0, 0, "{}") for n in range(2_000)
    ]
    events = [("rl_1", n, 1.0, "rl.train.step", "info", "m" * 200, "{}", 0) for n in range(1, 2_001)]
    statements: list[str] = []

    def fill(connection: Any) -> None:
        driver = connection.connection.dbapi_connection
        driver.executemany(f"INSERT INTO backend_rollouts VALUES ({','.join('?' * 17)})", rows)
        driver.executemany("INSERT INTO backend_events VALUES (?,?,?,?,?,?,?,?)", events)

    await records._place.transact(fill, writes=True)
    await records._place.transact(
        lambda connection: connection.connection.dbapi_connection.set_trace_callback(statements.append), writes=False
    )
    await records.job("rl_1")
    await records.jobs("org", limit=10)
    await records.followed("rl_1", since_seq=1_990, limit=500)
    await records.write("rl_1", Event("a", "b"))
    assert any("backend_jobs" in line for line in statements)
    assert not [line for line in statements if "backend_rollouts" in line or "document" in line]
    over, told = await records.followed("rl_1", since_seq=1_999, limit=500)
    assert (over, [event.seq for event in told]) == (False, [2_000, 2_001])
    assert len(await records.last_events("rl_1", ["rl.train.step"], 500)) == 500


@pytest.mark.anyio
async def test_many_who_look_do_not_hold_up_a_write(records: JobStore) -> None:
    release = threading.Event()
    reads = [asyncio.create_task(records._place.transact(lambda _: release.wait(30), writes=False)) for _ in range(10)]
    await asyncio.sleep(0)
    await records.write("rl_1", Event("a", "b"))
    assert not any(read.done() for read in reads), "the write did not wait for those before it"
    release.set()
    await asyncio.gather(*reads)


def test_points_that_are_no_numbers_are_refused_before_the_store() -> None:
    """An engine whose numbers are none ends its job; it does not stand still as with a full disk."""

    async def play(ledger: Ledger) -> None:
        await ledger.report(metrics={"reward": float("nan")})

    with serving(ScriptedApp().app()) as url, backend(engine=ScriptedEngine(play)) as back:
        assert back.ended(back.submit(url))["status"] == "failed"
