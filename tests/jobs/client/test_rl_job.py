"""RLJob as its guide says, before a scripted backend and a real task app."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.client import RLJob, weights_note
from taskapp_kit.errors import (
    BackendError,
    BackendUnreachable,
    ConfigError,
    JobConfigError,
    JobError,
    JobFailed,
    JobTimeout,
    TaskAppError,
    TaskAppUnreachable,
)
from taskapp_kit.jobs.server.app import create_backend
from taskapp_kit.records.job_status import WEIGHTS_NOTE
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from tests.client.counting_app import KEY as TASK_APP_KEY
from tests.client.counting_app import Counted, counting
from tests.client.listening import listening
from tests.jobs.client.scripted_backend import KEY, RUN, ScriptedBackend

pytestmark = pytest.mark.server

DATA = Path(__file__).parent / "data"
CONFIG = (DATA / "rl_config.toml").read_text().replace("127.0.0.1:8401", "127.0.0.1:1")


@pytest.fixture(scope="module")
def task_app() -> Iterator[Counted]:
    with counting() as counted:
        yield counted


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "rl_config.toml"
    path.write_text(CONFIG)
    return path


@contextmanager
def backend_with(**script: Any) -> Iterator[tuple[ScriptedBackend, str]]:
    backend = ScriptedBackend(**script)
    with listening(backend.app()) as url:
        yield backend, url


def known(url: str) -> RLJob:
    return RLJob.from_job_id("job_1", backend_url=url, api_key=KEY)


def made(config: Path, url: str, task_app: Counted, **more: Any) -> RLJob:
    return RLJob.from_config(
        config, backend_url=url, api_key=KEY, task_app_url=task_app.url, task_app_api_key=TASK_APP_KEY, **more
    )


def test_submit_sends_the_job_and_takes_its_id(config: Path, task_app: Counted) -> None:
    with backend_with() as (backend, url):
        more = {"overrides": {"training": {"num_epochs": 5}}, "idempotency_key": "unique-key"}
        job = made(config, url, task_app, allow_experimental=False, **more)
        assert job.job_id is None
        assert job.submit() == job.job_id == "job_1"
        with pytest.raises(JobError, match="already.*job_1"):
            job.submit()
    assert len(backend.posts) == 1
    path, body, headers = backend.posts[0]
    assert (path, headers["Idempotency-Key"]) == ("rl/jobs", "unique-key")
    assert body["data"]["endpoint_base_url"] == task_app.url
    assert body["data"]["config"]["training"]["num_epochs"] == 5
    assert body["data"]["config"]["training"]["group_size"] == 2
    assert body["metadata"]["backend_base_url"] == f"{url}/api"
    assert KEY not in json.dumps(body) and TASK_APP_KEY not in json.dumps(body)
    assert task_app.episodes == []


def test_what_is_left_out_comes_from_the_environment(
    config: Path, task_app: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    with backend_with() as (backend, url):
        monkeypatch.setenv("BACKEND_BASE_URL", url)
        monkeypatch.setenv("SYNTH_API_KEY", KEY)
        monkeypatch.setenv("TASK_APP_URL", task_app.url)
        monkeypatch.setenv("ENVIRONMENT_API_KEY", TASK_APP_KEY)
        job = RLJob.from_config(config)
        assert job.submit() == "job_1"
        assert job.poll_until_complete()["status"] == "succeeded"
        assert RLJob.from_job_id("job_1").get_status()["status"] == "succeeded"
    assert backend.posts[0][1]["data"]["endpoint_base_url"] == task_app.url


def test_overrides_name_the_model_and_both_addresses(config: Path) -> None:
    overrides = {"model": "Qwen/Qwen3-0.6B", "task_url": "http://127.0.0.1:4", "backend": "http://127.0.0.1:5"}
    job = RLJob.from_config(config, api_key=KEY, overrides=overrides)
    assert (job.backend_url, job.task_app_url) == ("http://127.0.0.1:5/api", "http://127.0.0.1:4")
    assert job.payload is not None
    job.payload["data"].clear()  # a copy
    assert job.payload["data"]["base_model"] == "Qwen/Qwen3-0.6B"


def test_what_cannot_be_used_is_told_before_anything_is_asked(config: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RLJob.from_config(tmp_path / "none.toml", backend_url="http://127.0.0.1:5", api_key=KEY)
    with pytest.raises(ValueError):
        RLJob.from_config(config, backend_url="http://127.0.0.1:5")
    with pytest.raises(ConfigError):
        RLJob.from_config(config, api_key=KEY)
    with pytest.raises(JobConfigError):
        RLJob.from_config(
            config, backend_url="http://127.0.0.1:5", api_key=KEY, overrides={"training": {"num_epochs": "five"}}
        )
    with pytest.raises(JobConfigError):
        RLJob.from_job_id(" ", backend_url="http://127.0.0.1:5", api_key=KEY)


@pytest.mark.parametrize("key", [None, "not-the-key"])
def test_a_task_app_that_refuses_the_key_is_told_and_nothing_is_submitted(
    config: Path, task_app: Counted, key: str | None
) -> None:
    with backend_with(any_ok=False) as (backend, url):
        job = RLJob.from_config(config, backend_url=url, api_key=KEY, task_app_url=task_app.url, task_app_api_key=key)
        with pytest.raises(TaskAppError) as told:
            job.submit()
        assert told.value.code == "unauthorised"
        assert backend.asked == ([] if key else ["POST rl/verify_task_app"])
    assert "not-the-key" not in str(told.value)


def test_without_the_task_apps_key_the_backend_checks_with_its_own(config: Path, task_app: Counted) -> None:
    with backend_with() as (backend, url):
        job = RLJob.from_config(config, backend_url=url, api_key=KEY, task_app_url=task_app.url)
        assert job.submit() == "job_1"
    assert backend.posts[0][1] == {"endpoint_base_url": task_app.url}
    assert [path for path, _, _ in backend.posts] == ["rl/verify_task_app", "rl/jobs"]


def test_a_task_app_that_is_not_there_is_told_and_the_job_may_be_submitted_later(config: Path) -> None:
    with backend_with() as (backend, url):
        job = RLJob.from_config(config, backend_url=url, api_key=KEY)
        with pytest.raises(TaskAppUnreachable):
            job.submit()
        assert (backend.asked, job.job_id) == ([], None)


@pytest.mark.parametrize("trouble", [500, 401, 422, "html", "drop"])
def test_a_backend_that_does_not_take_the_job(config: Path, task_app: Counted, trouble: Any) -> None:
    with backend_with(troubles={"POST rl/jobs": [trouble]}) as (_, url):
        job = made(config, url, task_app)
        with pytest.raises(BackendError) as told:
            job.submit()
        assert job.job_id is None
        assert job.submit() == "job_1"  # it was not taken, so it is not a second time
    assert KEY not in str(told.value) and "secret-page" not in str(told.value)


def test_a_key_that_the_trainer_refuses_is_reported_with_its_line(config: Path, task_app: Counted) -> None:
    config.write_text(CONFIG.replace("batch_size = 2", "batch_size = 10001"))
    line = CONFIG.splitlines().index("batch_size = 2") + 1
    with (
        BackgroundServer(create_backend([KEY])) as server,
        pytest.raises(BackendError, match=rf" line {line}: \[training\] batch_size: "),
    ):
        made(config, server.url, task_app).submit()


STEPS: list[dict[str, Any]] = [
    {"status": "queued"},
    {"status": "queued"},
    {"status": "running", "progress": {"completed": 0, "total": 2}},
    {"status": "running", "progress": {"completed": 1, "total": 2}},
    {"status": "running", "progress": {"completed": 1, "total": 2}, "metrics": {"reward": 0.25}},
    {"status": "running", "progress": {"completed": 1, "total": 2}, "metrics": {"reward": 0.25}},
    {"status": "running", "progress": {"completed": 2, "total": 2}, "metrics": {"reward": 0.5}},
    {"status": "succeeded", "progress": {"completed": 2, "total": 2}, "metrics": {"reward": 0.5}, "final_reward": 0.5},
]


def test_on_status_hears_of_every_change_and_of_nothing_else() -> None:
    told: list[dict[str, Any]] = []
    with backend_with(statuses=STEPS) as (backend, url):
        result = known(url).poll_until_complete(timeout=60.0, interval=0.01, on_status=told.append)
    assert result["final_reward"] == 0.5 and result["metrics"] == {"reward": 0.5}
    seen = [(job["status"], job["progress"].get("completed"), job["metrics"].get("reward")) for job in told]
    assert seen == [
        ("queued", None, None),
        ("running", 0, None),
        ("running", 1, None),
        ("running", 1, 0.25),
        ("running", 2, 0.5),
        ("succeeded", 2, 0.5),
    ]
    assert backend.looks == len(STEPS)


@pytest.mark.parametrize("word", ["succeeded", "failed", "cancelled", "canceled", "completed", "SUCCEEDED"])
@pytest.mark.parametrize("name", ["status", "state"])
def test_all_five_words_end_it(name: str, word: str) -> None:
    statuses = [{"status": "running"}, {"status": "running"}, {name: word, "error": "no gpu"}]
    with backend_with(statuses=statuses) as (_, url):
        job = known(url)
        with pytest.raises(JobFailed):  # it is not over
            job.get_results()
        assert job.poll_until_complete(timeout=60.0, interval=0.01)["status"] == word.lower()
        if word.lower() in ("succeeded", "completed"):
            assert job.get_results()["status"] == word.lower()
        else:
            with pytest.raises(JobFailed) as told:
                job.get_results()
            assert told.value.job["status"] == word.lower()


def test_results_may_stand_below() -> None:
    done = {"status": "succeeded", "results": {"final_reward": 0.75, "metrics": {"reward": 0.75}}}
    with backend_with(statuses=[done]) as (_, url):
        results = known(url).get_results()
    assert (results["final_reward"], results["metrics"]) == (0.75, {"reward": 0.75})
    with backend_with(statuses=[{"status": "succeeded", "metrics": None}]) as (_, url):
        results = known(url).get_results()
    assert results.get("final_reward", "N/A") == "N/A" and results["metrics"] == {}


@pytest.mark.parametrize(("trains", "warnings"), [(False, 1), (True, 0), (None, 0)])
def test_a_reward_without_training_comes_with_a_warning(
    trains: bool | None, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    done = {"status": "succeeded", "final_reward": 0.5, **({} if trains is None else {"updates_weights": trains})}
    with backend_with(statuses=[{"status": "running", "updates_weights": trains}, done]) as (_, url):
        job = known(url)
        last = job.poll_until_complete(timeout=60.0, interval=0.01)
        job.get_results()
    assert caplog.text.count(WEIGHTS_NOTE) == warnings
    assert weights_note(last) == (WEIGHTS_NOTE if warnings else "")


def test_interval_is_the_time_between_looks() -> None:
    with backend_with(statuses=[{"status": "running"}] * 3 + [{"status": "succeeded"}]) as (_, url):
        began = time.monotonic()
        known(url).poll_until_complete(timeout=60.0, interval=0.3)
    assert time.monotonic() - began >= 0.9


@pytest.mark.parametrize("interval", [0.05, 60.0])
def test_timeout_is_a_timeout_error(interval: float) -> None:
    with backend_with(statuses=[{"status": "running"}]) as (_, url):
        began = time.monotonic()
        with pytest.raises(TimeoutError, match=r"job_1.*0\.4 s.*running") as told:
            known(url).poll_until_complete(timeout=0.4, interval=interval)
    assert isinstance(told.value, JobTimeout)
    assert time.monotonic() - began < 30


def test_a_backend_that_hangs_does_not_outlast_the_timeout() -> None:
    with (
        backend_with(troubles={"job_1": ["slow"] * 9}) as (_, url),
        pytest.raises(TimeoutError, match=r"0\.5 s.*http://.*/rl/jobs/job_1"),
    ):
        known(url).poll_until_complete(timeout=0.5, interval=0.05)


@pytest.mark.parametrize(("timeout", "interval"), [(0, 1), (-1, 1), (1, -1), (float("nan"), 1)])
def test_times_that_cannot_be_used(timeout: float, interval: float) -> None:
    with pytest.raises(ValueError, match="timeout.*interval"):
        known("http://127.0.0.1:9").poll_until_complete(timeout=timeout, interval=interval)


def test_a_backend_that_is_away_for_a_while_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "taskapp_kit.client")
    troubles = {"GET rl/jobs/job_1": ["drop", 500, "truncated", 503, "drop", "drop", 502, 429]}
    statuses = [{"status": "running"}, {"status": "succeeded"}]
    with backend_with(statuses=statuses, troubles=troubles) as (_, url):
        assert known(url).poll_until_complete(timeout=60.0, interval=0.01)["status"] == "succeeded"
    assert "retrying" in caplog.text
    assert KEY not in caplog.text


@pytest.mark.parametrize("trouble", [401, 403, 404])
def test_a_refusal_is_not_waited_for(trouble: int) -> None:
    with backend_with(troubles={"job_1": [trouble] * 9}) as (backend, url), pytest.raises(BackendError) as told:
        known(url).poll_until_complete(timeout=60.0, interval=0.01)
    assert told.value.status == trouble
    assert len(backend.asked) <= 3


def test_a_callback_that_changes_what_it_is_given_is_not_called_for_that() -> None:
    calls: list[int] = []

    def greedy(job: dict[str, Any]) -> None:
        calls.append(1)
        job["progress"].clear()
        job.clear()

    running = {"status": "running", "progress": {"completed": 1}}
    with backend_with(statuses=[running] * 3 + [{"status": "succeeded"}]) as (_, url):
        result = known(url).poll_until_complete(timeout=60.0, interval=0.01, on_status=greedy)
    assert (len(calls), result["status"]) == (2, "succeeded")


def test_what_a_callback_raises_comes_out() -> None:
    def broken(job: dict[str, Any]) -> None:
        raise KeyError("mine")

    with backend_with() as (_, url), pytest.raises(KeyError, match="mine"):
        known(url).poll_until_complete(on_status=broken)


def test_nobody_answers() -> None:
    with pytest.raises(BackendUnreachable, match=r"http://127\.0\.0\.1:9/api"):
        known("http://127.0.0.1:9").get_status()
    assert known("http://127.0.0.1:9").payload is None


def test_a_job_that_was_not_submitted_has_no_status(config: Path) -> None:
    job = RLJob.from_config(config, backend_url="http://127.0.0.1:9", api_key=KEY)
    calls: tuple[Callable[[], Any], ...] = (job.get_status, job.get_results, job.poll_until_complete, job.events,
                                            job.metrics, job.cancel, job.start, lambda: list(job.stream()))  # fmt: skip
    for call in calls:
        with pytest.raises(JobError):
            call()


def test_a_key_shows_nowhere(config: Path) -> None:
    job = RLJob.from_config(config, backend_url="http://127.0.0.1:9", api_key=KEY, task_app_api_key=TASK_APP_KEY)
    assert KEY not in repr(job) and TASK_APP_KEY not in repr(job)


POINTS = [{"name": "reward", "value": 0.5, "step": step} for step in range(3)]


def test_events_metrics_stream_and_cancel() -> None:
    statuses = [{"status": "succeeded"}]
    with backend_with(events=RUN, points=POINTS, sse=("rl",), statuses=statuses) as (_, url):
        job = known(url)
        assert job.events() == RUN and job.events(9) == RUN[9:]
        assert job.metrics() == POINTS
        assert list(job.stream()) == RUN and list(job.stream(5)) == RUN[5:]
        assert job.cancel()["status"] == "cancelled"


def test_a_stream_may_be_left_early() -> None:
    with backend_with(events=RUN, sse=("rl",)) as (_, url):
        for event in known(url).stream():
            assert event["seq"] == 1
            break
    assert not [thread for thread in threading.enumerate() if thread.name == "taskapp-client"]


def test_a_callback_may_be_asynchronous() -> None:
    told: list[str] = []

    async def on_status(status: dict[str, Any]) -> None:
        told.append(status["status"])

    with backend_with(statuses=STEPS) as (_, url):
        status = asyncio.run(known(url).poll_until_complete_async(interval=0.01, on_status=on_status))
    assert (status["status"], len(told)) == ("succeeded", 6)
