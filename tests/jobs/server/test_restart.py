"""A backend that is killed or stopped in the middle of a job, as a process of its own, before a real task app."""

from __future__ import annotations

import random
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from taskapp_kit.asgi import build
from taskapp_kit.config import Settings
from taskapp_kit.serve.uvicorn_server import BackgroundServer, bind
from tests.jobs.server.exchange import KEY, BackendProcess, a_config, a_job, client, ended
from tests.live_app import app as live_app
from tests.live_app import marks
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.server]

APP_KEY = "sentinel-key-of-the-live-app"
ITERATIONS, GROUPS, SAMPLES, EVALUATIONS = 6, 2, 2, 3
TOTAL = ITERATIONS * GROUPS * SAMPLES + EVALUATIONS * 2


@contextmanager
def processes(folder: Path) -> Iterator[BackendProcess]:
    """One that has the same port and store each time that it is started."""
    with bind("127.0.0.1", 0) as free:
        port = str(free.getsockname()[1])
    process = BackendProcess(folder, "--port", port, SYNTH_API_KEY=KEY, ENVIRONMENT_API_KEY=APP_KEY)
    try:
        yield process
    finally:
        process.end(signal.SIGKILL)


@contextmanager
def live(folder: Path) -> Iterator[str]:
    settings = Settings(environment_api_key=APP_KEY, store=str(folder / "rollouts.db"))
    with BackgroundServer(build(live_app, settings, exposure="local")) as server:
        yield server.url


def a_slow_job(url: str, mark: Path) -> dict[str, Any]:
    config = a_config(
        rollout={
            "env_name": "show", "policy_name": "noop", "max_turns": 10, "ops": ["agent", "env"],
            "env_config": {"slow": 0.05, "steps": 3, "mark": str(mark)},
        },
        training={"iterations_per_epoch": ITERATIONS, "batch_size": GROUPS, "group_size": SAMPLES},
        evaluation={"instances": 2, "every_n_iters": 2, "seeds": [7, 8]},
    )  # fmt: skip
    return a_job(url, config)


def is_whole(http: httpx.Client, job_id: str) -> list[dict[str, Any]]:
    """Everything is there once, in order; answers the events."""
    status = ended(http, job_id)
    assert status["status"] == "succeeded", status
    assert status["progress"] == {"completed": TOTAL, "total": TOTAL, "unit": "rollouts"}
    assert status["final_reward"] == 1.0
    events = http.get(f"/rl/jobs/{job_id}/events?limit=1000").json()["events"]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    told = [(event["type"], event["data"].get("step")) for event in events if event["type"] != "rl.job.resumed"]
    expected: list[tuple[str, int | None]] = [("rl.job.created", None), ("rl.train.started", None)]
    for step in range(1, ITERATIONS + 1):
        expected.append(("rl.train.step", step))
        if step % 2 == 0:
            expected += [("rl.eval.started", step), ("rl.eval.summary", step)]
    assert told == [*expected, ("rl.job.completed", None)]
    points = http.get(f"/rl/jobs/{job_id}/metrics?after_step=-1&limit=1000").json()["points"]
    assert [p["step"] for p in points if p["name"] == "reward"] == list(range(1, ITERATIONS + 1))
    assert [p["step"] for p in points if p["name"] == "eval_reward"] == [2, 4, 6]
    return events  # type: ignore[no-any-return]


def rows(folder: Path, job_id: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(folder / ".taskapp" / "backend.db") as database:
        return database.execute(
            "SELECT phase, iteration, place, sample, seed, status, reward FROM backend_rollouts WHERE job_id = ? "
            "ORDER BY phase, iteration, place, sample",
            [job_id],
        ).fetchall()


@pytest.mark.ci
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_a_backend_that_is_killed_or_stopped_goes_on_where_it_was(tmp_path: Path, seed: int) -> None:
    moments = sorted(random.Random(seed).sample(range(1, TOTAL - 8), 2))
    mark = tmp_path / "mark"
    with live(tmp_path) as url, processes(tmp_path) as process:
        process.start()
        with client(process.url) as http:
            body = a_slow_job(url, mark)
            job_id = http.post("/rl/jobs", json=body, headers={"Idempotency-Key": "once"}).json()["job_id"]
            for moment, number, status in zip(moments, (signal.SIGKILL, signal.SIGTERM), (-9, 0), strict=True):
                until(lambda moment=moment: marks(mark, "reset") >= moment)  # type: ignore[misc]
                assert process.end(number) == status
                process.start()
            again = http.post("/rl/jobs", json=body, headers={"Idempotency-Key": "once"})
            assert again.json()["job_id"] == job_id
            events = is_whole(http, job_id)
    assert "rl.job.resumed" in [event["type"] for event in events]
    played = rows(tmp_path, job_id)
    assert len(played) == TOTAL
    assert {row[5:] for row in played} == {("terminated", 1.0)}
    # what was answered before an end is not played again: at most those in flight at each end are
    assert marks(mark, "reset") <= TOTAL + 2 * 4
    assert "continue when the backend starts again" in process.err
    assert APP_KEY not in process.err and KEY not in process.err
