"""The life of jobs: in turn, cancelled, taken up again by the next backend of the same store."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.client import RLJob
from taskapp_kit.errors import JobError, StoreError
from taskapp_kit.jobs.server.auth import BearerKeys
from taskapp_kit.jobs.server.data_files import JobDatabase
from taskapp_kit.jobs.server.engine import CurvePoint, Event, JobDocument, JobOutcome, Ledger, RolloutOutcome
from taskapp_kit.jobs.server.store import JobStore
from tests.jobs.server.exchange import (
    KEY,
    OTHER_KEY,
    Answer,
    Gate,
    GatedApp,
    ScriptedApp,
    ScriptedEngine,
    a_config,
    a_job,
    backend,
    client,
    episode,
    serving,
)
from tests.waiting import until

pytestmark = pytest.mark.server


def test_a_running_job_is_cancelled_with_its_rollouts() -> None:
    app = GatedApp()
    with serving(app.app()) as url, backend() as back:
        job_id = back.submit(url)
        until(lambda: app.in_flight == 4)
        told = back.http.post(f"/rl/jobs/{job_id}/cancel", json={}).json()
        assert told["status"] == "cancelled"
        until(lambda: app.in_flight == 0)
        assert app.dropped == 4
        assert back.events(job_id)[-1]["type"] == "rl.job.cancelled"
        again = back.http.post(f"/learning/jobs/{job_id}/cancel").json()
        assert (again["status"], len(back.events(job_id))) == ("cancelled", 3)


def test_jobs_beyond_the_limit_wait_their_turn_and_can_be_cancelled_there() -> None:
    app = GatedApp()
    with serving(app.app()) as url, backend(max_jobs=1) as back:
        first, second, third = (back.submit(url) for _ in range(3))
        until(lambda: app.in_flight == 4)
        assert [back.status(job)["status"] for job in (first, second, third)] == ["running", "queued", "queued"]
        assert back.http.get("/health").json()["jobs"] == {"running": 1, "queued": 2}
        assert back.http.post(f"/rl/jobs/{second}/cancel").json()["status"] == "cancelled"
        app.gate.open()
        assert back.ended(first)["status"] == back.ended(third)["status"] == "succeeded"
        assert back.status(second)["status"] == "cancelled"
        assert {body["run_id"] for _, body in app.requests} == {first, third}


def test_the_next_backend_of_the_store_goes_on(tmp_path: Path) -> None:
    store, app = str(tmp_path / "jobs.db"), GatedApp()
    with serving(app.app()) as url:
        with backend(store=store) as back:
            running = back.submit(url, a_config(training={"iterations_per_epoch": 2}))
            until(lambda: app.in_flight == 4)
        assert app.in_flight == 0
        before = {key for key, _ in app.requests}
        app.gate.open()
        with backend(store=store) as back:
            status, events = back.ended(running), back.events(running)
    assert status["status"] == "succeeded"
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["type"] for event in events] == [
        "rl.job.created", "rl.train.started", "rl.job.resumed", "rl.train.step", "rl.train.step", "rl.job.completed",
    ]  # fmt: skip
    by_key: dict[str | None, Any] = {}
    for key, body in app.requests:
        assert by_key.setdefault(key, body) == body, "the same key is sent with the same body"
    assert before < set(by_key)
    assert len(by_key) == 8


def test_a_job_that_goes_on_counts_each_rollout_once(tmp_path: Path) -> None:
    """Two of the four rollouts of an iteration are stored when the backend stops."""
    store, gate = str(tmp_path / "jobs.db"), Gate()

    async def play(body: dict[str, Any]) -> Answer:
        if body["policy"]["config"]["sample"] == 1:
            await gate.passed()
            return episode(0.0)
        return episode(1.0)

    app = ScriptedApp(play=play)
    with serving(app.app()) as url:
        with backend(store=store) as back:
            job_id = back.submit(url)
            until(lambda: back.status(job_id)["progress"]["completed"] == 2 and app.in_flight == 2)
        gate.open()
        with backend(store=store) as back:
            status, events = back.ended(job_id), back.events(job_id)
    (step,) = (event["data"] for event in events if event["type"] == "rl.train.step")
    assert (step["rollouts"], step["scored"], step["reward"]) == (4, 4, 0.5)
    assert status["results"]["rollouts"]["played"] == status["progress"]["completed"] == 4
    times = Counter(body["policy"]["config"]["sample"] for _, body in app.requests)
    assert times == {0: 2, 1: 4}, "those that were over are not asked for again"


def test_a_job_that_was_to_be_cancelled_is_not_taken_up_again(tmp_path: Path) -> None:
    store, app = tmp_path / "jobs.db", GatedApp()
    with serving(app.app()) as url, backend(store=str(store)) as back:
        job_id = back.submit(url)
        until(lambda: app.in_flight == 4)

    async def ask() -> None:
        records = JobStore(JobDatabase(store))
        await records.write(job_id, cancelling=True)  # what `cancel` writes first; then the process was killed
        await records.close()

    asyncio.run(ask())
    with backend(store=str(store)) as back:
        assert back.ended(job_id)["status"] == "cancelled"
    assert len(app.requests) == 4


def test_a_store_has_one_backend(tmp_path: Path) -> None:
    store = str(tmp_path / "jobs.db")
    with backend(store=store), pytest.raises(StoreError), backend(store=store):
        pass


async def half_wrong(ledger: Ledger) -> None:
    """Reports of which one part is no JSON."""
    wrong = {"no": float("nan")}
    for event, state in ((Event("test.told", "whole"), wrong), (Event("test.told", "", data=wrong), {"half": 1})):
        with pytest.raises(ValueError):
            await ledger.report(event, state=state, points=[CurvePoint("reward", 1.0, 1, "train", 1)], total=9)


def test_an_engines_report_is_written_whole_or_not_at_all() -> None:
    with serving(ScriptedApp().app()) as url, backend(engine=ScriptedEngine(half_wrong)) as back:
        job_id = back.submit(url)
        status = back.ended(job_id)
        assert (status["status"], status["progress"]["total"]) == ("succeeded", 0)
        assert [event["type"] for event in back.events(job_id)] == ["rl.job.created", "rl.job.completed"]
        assert back.http.get(f"/rl/jobs/{job_id}/metrics").json()["points"] == []
        assert asyncio.run(back.state.jobs.records.work(job_id))[1] == {}


async def breaks(_: Ledger) -> None:
    raise ZeroDivisionError("sentinel of the engine")


def test_an_engine_that_breaks_fails_the_job_and_tells_no_secrets() -> None:
    with serving(ScriptedApp().app()) as url, backend(engine=ScriptedEngine(breaks)) as back:
        job_id = back.submit(url)
        status = back.ended(job_id)
        assert (status["status"], status["updates_weights"]) == ("failed", True)
        assert "err_" in status["error"]
        assert "sentinel" not in str((status, back.events(job_id)))
        assert back.http.post(f"/rl/jobs/{job_id}/start").json() == status, "this engine cannot go on"


class Resuming(ScriptedEngine):
    """An engine that can go on. Each run stores its number; it ends as `ends` says, and then succeeds."""

    restarts = True

    def __init__(self, *ends: str) -> None:
        super().__init__()
        self.ends, self.held, self.states = [*ends], Gate(), list[Mapping[str, Any]]()

    async def run(self, job: JobDocument, task_app: Any, ledger: Ledger, state: Mapping[str, Any]) -> JobOutcome:
        end = self.ends.pop(0) if self.ends else ""
        self.states.append(state)
        runs = len(self.states)
        if state:
            await ledger.supersede(0, Event("rl.train.resumed", "back"), state={"runs": runs}, metrics={"runs": runs})
        await ledger.report(Event("rl.train.step", f"{runs}"), state={"runs": runs}, metrics={"runs": runs})
        await ledger.store(RolloutOutcome("train", 1, 0, 0, 7, "terminated", 0.5, f"ro_{runs}"))
        if end == "fails":
            raise JobError("It broke.")
        if end == "hangs":
            await self.held.passed()
        return JobOutcome(1.0)


def test_a_job_that_failed_or_was_cancelled_is_started_again() -> None:
    engine = Resuming("fails", "hangs")
    with serving(ScriptedApp().app()) as url, backend(engine=engine) as back, client(back.url, OTHER_KEY) as other:
        job_id = back.submit(url)
        assert back.ended(job_id)["error"] == "It broke."
        assert other.post(f"/rl/jobs/{job_id}/start").status_code == 404
        job = RLJob.from_job_id(job_id, back.url, KEY)
        assert job.start()["status"] in ("queued", "running")
        until(lambda: len(engine.states) == 2)
        assert back.http.post(f"/rl/jobs/{job_id}/start").json()["status"] == "running", "nothing happens"
        assert back.http.post(f"/rl/jobs/{job_id}/cancel").json()["status"] == "cancelled"
        assert back.http.post(f"/rl/jobs/{job_id}/start").json()["error"] is None
        status = job.poll_until_complete(interval=0.1)
        assert (status["status"], status["progress"]["completed"], status["metrics"]) == ("succeeded", 1, {})
        assert back.http.post(f"/rl/jobs/{job_id}/start").json()["status"] == "succeeded"
        events = back.events(job_id)
    assert engine.states == [{}, {"runs": 1}, {"runs": 2}]
    assert [(event["type"].split(".", 1)[1], event["superseded_by"]) for event in events] == [
        ("job.created", None), ("train.step", 5), ("job.failed", None), ("job.resumed", None), ("train.resumed", 9),
        ("train.step", 9), ("job.cancelled", None), ("job.resumed", None), ("train.resumed", None),
        ("train.step", None), ("job.completed", None),
    ]  # fmt: skip


def test_starts_and_cancels_that_race_leave_a_job_that_can_be_ended() -> None:
    engine = Resuming(*["hangs"] * 200)
    with serving(ScriptedApp().app()) as url, backend(engine=engine) as back, ThreadPoolExecutor(8) as threads:
        job_id = back.submit(url)
        words = ["cancel", "start"] * 20
        answers = list(threads.map(lambda word: back.http.post(f"/rl/jobs/{job_id}/{word}"), words))
        assert {answer.status_code for answer in answers} == {200}
        assert back.http.post(f"/rl/jobs/{job_id}/cancel").json()["status"] == "cancelled"
        assert back.state.jobs.counts == {"running": 0, "queued": 0}
        engine.ends.clear()
        back.http.post(f"/rl/jobs/{job_id}/start")
        assert back.ended(job_id)["status"] == "succeeded"
        kinds = [event["type"] for event in back.events(job_id)]
    assert kinds.count("rl.job.resumed") == kinds.count("rl.job.cancelled")


def test_the_jobs_of_one_key_do_not_keep_those_of_another_waiting() -> None:
    app = GatedApp()
    with serving(app.app()) as url, backend(max_jobs=2) as back, client(back.url, OTHER_KEY) as other:
        many = [back.submit(url) for _ in range(4)]
        until(lambda: app.in_flight == 8)
        theirs = other.post("/rl/jobs", json=a_job(url)).json()["job_id"]
        app.gate.open()
        back.ended(many[-1])
        until(lambda: other.get(f"/rl/jobs/{theirs}").json()["status"] == "succeeded")
    first_asked = list(dict.fromkeys(body["run_id"] for _, body in app.requests))
    assert set(first_asked[:2]) == set(many[:2])
    assert theirs in first_asked[:4], "it did not wait for all four"


def test_a_job_that_is_known_is_answered_also_where_no_other_one_is_taken() -> None:
    app = GatedApp()
    with serving(app.app()) as url, backend() as back:
        back.state.jobs.max_waiting = 2
        headers = {"Idempotency-Key": "first"}
        first = back.submit(url, **headers)
        back.submit(url)
        full = back.http.post("/rl/jobs", json=a_job(url))
        assert (full.status_code, full.headers["retry-after"]) == (503, "60")
        assert back.submit(url, **headers) == first
        app.gate.open()


def test_many_cancels_and_one_end() -> None:
    """However they race, the job ends once, and its events have no gap."""
    app = GatedApp()
    with serving(app.app()) as url, backend() as back, ThreadPoolExecutor(8) as threads:
        for round_ in range(6):
            job_id = back.submit(url)
            if round_ % 2:
                until(lambda: app.in_flight > 0)
            if round_ == 5:
                app.gate.open()
            answers = list(threads.map(lambda _, job=job_id: back.http.post(f"/rl/jobs/{job}/cancel"), range(8)))
            assert {answer.status_code for answer in answers} == {200}
            status, events = back.ended(job_id), back.events(job_id)
            assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
            ends = [event["type"] for event in events if event["type"].rpartition(".")[2] in ("cancelled", "completed")]
            assert len(ends) == 1
            assert ends[0].endswith(status["status"]) or status["status"] == "succeeded"
            until(lambda: app.in_flight == 0)
        assert back.http.get("/health").json()["jobs"] == {"running": 0, "queued": 0}


def test_bells_of_jobs_that_nobody_listens_to_are_forgotten() -> None:
    with serving(ScriptedApp().app()) as url, backend() as back:
        jobs = [back.submit(url) for _ in range(3)]
        for job_id in jobs:
            back.ended(job_id)
            assert back.http.get(f"/rl/jobs/{job_id}/events/stream").status_code == 200
        gc.collect()
        assert len(back.state.jobs.notifiers) == 0
        assert not back.state.jobs._busy


def test_a_key_that_was_made_once_keeps_its_jobs_when_it_is_configured(tmp_path: Path) -> None:
    store = str(tmp_path / "jobs.db")
    with serving(ScriptedApp().app()) as url:
        with backend(keys=BearerKeys([], minted=KEY), store=store) as back:
            job_id = back.submit(url)
            back.ended(job_id)
        with backend(keys=[KEY, OTHER_KEY], store=store) as back, client(back.url, OTHER_KEY) as other:
            assert back.status(job_id)["status"] == "succeeded"
            assert other.get(f"/rl/jobs/{job_id}").status_code == 404
