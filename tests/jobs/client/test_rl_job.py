"""RLJob as its guide says, before a scripted backend and a real task app."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import threading
import time
from collections.abc import Iterator
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

CONFIG = """
[algorithm]
type = "online"
method = "policy_gradient"
variety = "gspo"
[services]
task_url = "http://127.0.0.1:1"
[compute]
gpu_type = "H100"
gpu_count = 2
[compute.topology]
type = "single_node_split"
gpus_for_vllm = 1
gpus_for_training = 1
gpus_for_ref = 0
tensor_parallel = 1
[vllm]
tensor_parallel_size = 1
[model]
base = "Qwen/Qwen3-4B"
trainer_mode = "full"
label = "counting"
[rollout]
env_name = "counting"
policy_name = "random"
max_turns = 5
episodes_per_batch = 2
max_concurrent_rollouts = 4
[training]
num_epochs = 1
iterations_per_epoch = 1
max_turns = 5
batch_size = 2
group_size = 2
learning_rate = 1e-5
log_interval = 1
weight_sync_interval = 1
[evaluation]
instances = 2
every_n_iters = 1
seeds = [0, 1]
"""


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


# -- making one


def test_submit_sends_the_job_and_takes_its_id(config: Path, task_app: Counted) -> None:
    with backend_with() as (backend, url):
        job = RLJob.from_config(
            config_path=str(config), backend_url=url, api_key=KEY, task_app_url=task_app.url,
            task_app_api_key=TASK_APP_KEY, allow_experimental=False, overrides={"training": {"num_epochs": 5}},
            idempotency_key="unique-key",
        )  # fmt: skip
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


def test_overrides_are_nested_and_the_callers_dict_stays_as_it_is(config: Path) -> None:
    overrides = {
        "training": {"group_size": 8},
        "evaluation": {"seeds": [7]},
        "model": "Qwen/Qwen3-0.6B",
        "task_url": "http://127.0.0.1:4",
        "backend": "http://127.0.0.1:5",
    }
    before = copy.deepcopy(overrides)
    job = RLJob.from_config(config, api_key=KEY, overrides=overrides)
    assert overrides == before
    assert job.backend_url == "http://127.0.0.1:5/api"
    assert job.task_app_url == "http://127.0.0.1:4"
    assert job.payload is not None
    job.payload["data"].clear()  # a copy
    data = job.payload["data"]
    assert data["base_model"] == "Qwen/Qwen3-0.6B"
    assert (data["config"]["training"]["group_size"], data["config"]["training"]["batch_size"]) == (8, 2)
    assert data["config"]["evaluation"]["seeds"] == [7]


def test_what_cannot_be_used_is_told_before_anything_is_asked(config: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RLJob.from_config(tmp_path / "none.toml", backend_url="http://127.0.0.1:5", api_key=KEY)
    with pytest.raises(ValueError, match="SYNTH_API_KEY"):
        RLJob.from_config(config, backend_url="http://127.0.0.1:5")
    with pytest.raises(ConfigError, match="BACKEND_BASE_URL"):
        RLJob.from_config(config, api_key=KEY)
    with pytest.raises(JobConfigError, match="num_epochs"):
        RLJob.from_config(
            config, backend_url="http://127.0.0.1:5", api_key=KEY, overrides={"training": {"num_epochs": "five"}}
        )
    with pytest.raises(JobConfigError):
        RLJob.from_job_id(" ", backend_url="http://127.0.0.1:5", api_key=KEY)


# -- the task app is asked first


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
        with pytest.raises(TaskAppError, match="not submitted.*127.0.0.1:1") as told:
            job.submit()
        assert told.value.code == "unreachable"
        assert isinstance(told.value, TaskAppUnreachable)
        assert (backend.asked, job.job_id) == ([], None)


@pytest.mark.parametrize("trouble", [500, 401, 422, "html", "drop"])
def test_a_backend_that_does_not_take_the_job(config: Path, task_app: Counted, trouble: Any) -> None:
    with backend_with(troubles={"POST rl/jobs": [trouble]}) as (_, url):
        job = RLJob.from_config(
            config, backend_url=url, api_key=KEY, task_app_url=task_app.url, task_app_api_key=TASK_APP_KEY
        )
        with pytest.raises(BackendError) as told:
            job.submit()
        assert job.job_id is None
        assert job.submit() == "job_1"  # it was not taken, so it is not a second time
    assert KEY not in str(told.value) and "secret-page" not in str(told.value)


def test_a_key_that_the_trainer_refuses_is_reported_with_its_line(config: Path, task_app: Counted) -> None:
    config.write_text(CONFIG.replace("batch_size = 2", "batch_size = 10001"))
    line = CONFIG.splitlines().index("batch_size = 2") + 1
    with BackgroundServer(create_backend([KEY])) as server:
        job = RLJob.from_config(
            config, backend_url=server.url, api_key=KEY, task_app_url=task_app.url, task_app_api_key=TASK_APP_KEY
        )
        with pytest.raises(
            BackendError, match=rf" line {line}: \[training\] batch_size: found 10001; expected at most"
        ):
            job.submit()


def test_a_lost_answer_with_an_idempotency_key_is_asked_for_again(config: Path, task_app: Counted) -> None:
    with backend_with(troubles={"POST rl/jobs": ["drop", "truncated"]}) as (backend, url):
        job = RLJob.from_config(
            config, backend_url=url, api_key=KEY, task_app_url=task_app.url, task_app_api_key=TASK_APP_KEY,
            idempotency_key="i-1",
        )  # fmt: skip
        assert job.submit() == "job_1"
    assert [headers["Idempotency-Key"] for _, _, headers in backend.posts] == ["i-1"] * 3


# -- following one


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
    with backend_with(statuses=[{"status": "running"}, {name: word, "error": "no gpu"}]) as (_, url):
        job = known(url)
        assert job.poll_until_complete(timeout=60.0, interval=0.01)["status"] == word.lower()
        if word.lower() in ("succeeded", "completed"):
            assert job.get_results()["status"] == word.lower()
        else:
            with pytest.raises(JobFailed, match="job_1 .*: no gpu") as told:
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
    assert [record.getMessage().count(WEIGHTS_NOTE) for record in caplog.records] == [1] * warnings
    assert weights_note(last) == (WEIGHTS_NOTE if warnings else "")


def test_results_of_a_job_that_is_under_way() -> None:
    with backend_with(statuses=[{"status": "running"}]) as (_, url), pytest.raises(JobFailed) as told:
        known(url).get_results()
    assert told.value.job["status"] == "running"


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
    assert "will be again" in caplog.text
    assert KEY not in caplog.text


def test_a_backend_that_restarts_is_waited_for() -> None:
    backend = ScriptedBackend(statuses=[{"status": "running"}] * 2 + [{"status": "succeeded"}])
    seen: list[str] = []
    first_look = threading.Event()
    results: list[dict[str, Any]] = []

    def on_status(job: dict[str, Any]) -> None:
        seen.append(job["status"])
        first_look.set()

    with listening(backend.app()) as url:
        watcher = threading.Thread(
            target=lambda: results.append(
                known(url).poll_until_complete(timeout=60.0, interval=0.1, on_status=on_status)
            )
        )
        watcher.start()
        assert first_look.wait(30)
    time.sleep(0.5)  # nobody listens there now
    with listening(backend.app(), port=int(url.rpartition(":")[2])):
        watcher.join(60)
    assert results[0]["status"] == "succeeded"
    assert seen == ["running", "succeeded"]


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
    for ask in (
        job.get_status,
        job.get_results,
        job.poll_until_complete,
        job.events,
        job.metrics,
        job.cancel,
        job.start,
    ):
        with pytest.raises(JobError, match=r"submit\(\)"):
            ask()
    with pytest.raises(JobError, match=r"submit\(\)"):
        list(job.stream())


def test_a_key_shows_nowhere(config: Path) -> None:
    job = RLJob.from_config(config, backend_url="http://127.0.0.1:9", api_key=KEY, task_app_api_key=TASK_APP_KEY)
    assert KEY not in repr(job) and TASK_APP_KEY not in repr(job)


# -- events, metrics, cancel, inside and outside a loop


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


def test_everything_works_inside_a_running_loop(config: Path, task_app: Counted) -> None:
    with backend_with(events=RUN, points=POINTS, statuses=STEPS) as (_, url):

        async def main() -> None:
            job = RLJob.from_config(
                config, backend_url=url, api_key=KEY, task_app_url=task_app.url, task_app_api_key=TASK_APP_KEY
            )
            told: list[Any] = []
            assert job.submit() == "job_1"
            assert job.get_status()["status"] == "queued"
            assert job.poll_until_complete(interval=0.01, on_status=told.append)["status"] == "succeeded"
            assert len(told) == 6
            assert job.get_results()["final_reward"] == 0.5
            assert job.events() == list(job.stream()) == RUN
            assert job.metrics() == POINTS
            assert job.cancel()["status"] == "cancelled"

        asyncio.run(main())


def test_the_asynchronous_twins(config: Path, task_app: Counted) -> None:
    with backend_with(events=RUN, points=POINTS, statuses=STEPS) as (_, url):

        async def main() -> None:
            job = RLJob.from_config(
                config, backend_url=url, api_key=KEY, task_app_url=task_app.url, task_app_api_key=TASK_APP_KEY
            )
            told: list[Any] = []

            async def on_status(status: dict[str, Any]) -> None:
                await asyncio.sleep(0)
                told.append(status)

            assert await job.submit_async() == "job_1"
            assert (await job.get_status_async())["status"] == "queued"
            assert (await job.poll_until_complete_async(interval=0.01, on_status=on_status))["status"] == "succeeded"
            assert len(told) == 6
            assert (await job.get_results_async())["final_reward"] == 0.5
            assert await job.events_async() == [event async for event in job.stream_async()] == RUN
            assert await job.metrics_async() == POINTS
            assert (await job.cancel_async())["status"] == "cancelled"

        asyncio.run(main())
