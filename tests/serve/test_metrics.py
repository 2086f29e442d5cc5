"""Counting: real rollouts, in threads and in a worker process, and what Prometheus reads of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as text_format

from taskapp_kit import TaskApp
from taskapp_kit.config import Settings
from taskapp_kit.errors import RolloutFailed
from taskapp_kit.rollout.admission import Caller
from taskapp_kit.serve.connection_limits import CAUSES
from taskapp_kit.serve.telemetry.metrics import SECONDS, Metrics, render
from tests.rollouts import a_request, app_from, serving
from tests.serve.load_test import SECOND
from tests.serve.running_server import KEY, RunningServer, fragments, opened, request_body
from tests.waiting import until, until_async

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]

SOURCE = """
import time
app = TaskApp("counted")

@app.environment("counted", splits={"train": range(9)}, max_steps=3)
class Counted:
    def __init__(self, breaks: str = "", seconds: float = 0.0):
        self.breaks, self.seconds = breaks, seconds

    def reset(self, seed: int) -> str:
        time.sleep(self.seconds)
        return ""

    @action(noop={})
    def go(self) -> Step:
        "Go."
        if self.breaks == "step":
            raise RuntimeError("broken")
        if self.breaks == "no":
            raise InvalidAction("no")
        time.sleep(self.seconds)
        return Step("", -1.0)

app.environment("other", splits={"train": range(9)}, max_steps=1)(Counted)

@app.rubric(environment="counted")
def score(trajectory, config) -> float:
    "A quarter."
    if config.get("breaks") == "rubric":
        raise RuntimeError("broken")
    return 0.25
"""


def read(body: bytes, *, as_open: bool = False) -> Samples:
    parse = open_metrics if as_open else text_format
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse(body.decode())
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


async def _play(app: TaskApp, workers: int) -> Samples:
    async with serving(app, workers=workers) as service:
        measures = Metrics(service.spec.environments, service.health)
        service.watchers.append(measures.ended)
        await service.start()
        for config in ({}, {"breaks": "no"}, {"breaks": "step"}, {"breaks": "rubric"}):
            with contextlib.suppress(RolloutFailed):
                await service.rollout(a_request("noop", seed=1, config=config), caller=Caller("lab"))
        await service.rollout(a_request("noop", seed=1, env_name="other"))
        slow = a_request("noop", seed=1, config={"seconds": 0.2})
        task = asyncio.create_task(service.rollout(slow))
        await until_async(lambda: value(read(render(measures.snapshot())[0]), "taskapp_in_flight") == 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        with pytest.raises(RolloutFailed):
            await service.rollout(a_request("noop", seed=1, config={"seconds": 0.2}, safety={"max_time_s": 0.3}))
        return read(render(measures.snapshot())[0])


@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 1])
def test_metrics_after_real_rollouts(tmp_path: Path, workers: int) -> None:
    found = asyncio.run(_play(app_from(tmp_path, SOURCE), workers))

    def rollouts(status: str, boundary: str, key: str, environment: str = "counted") -> float | None:
        labels = {"environment": environment, "status": status, "boundary": boundary, "key": key}
        return value(found, "taskapp_rollouts_total", **labels)

    assert rollouts("truncated", "", "lab") == 2
    assert rollouts("failed", "environment", "lab") == 1
    assert rollouts("failed", "scoring", "lab") == 1
    assert rollouts("failed", "cancelled", "") == 1
    assert rollouts("failed", "timeout", "") == 1
    assert rollouts("truncated", "", "", "other") == 1
    assert sum(number for (name, _), number in found.items() if name == "taskapp_rollouts_total") == 7

    def of_counted(name: str, **labels: str) -> float:
        number = value(found, name, environment="counted", **labels)
        assert number is not None, name
        return number

    assert of_counted("taskapp_rollout_seconds_count") == of_counted("taskapp_rollout_seconds_bucket", le="+Inf") == 6
    assert 0.3 <= of_counted("taskapp_rollout_seconds_sum") < 20
    phases = {
        phase: of_counted("taskapp_rollout_phase_seconds_total", phase=phase)
        for phase in ("environment", "policy", "scoring", "framework")
    }
    assert all(seconds >= 0 for seconds in phases.values())
    assert sum(phases.values()) == pytest.approx(of_counted("taskapp_rollout_seconds_sum"))
    assert of_counted("taskapp_steps_total") >= 9
    assert of_counted("taskapp_invalid_actions_total") == 3
    assert of_counted("taskapp_rewards_total") == of_counted("taskapp_outcome_scores_total") == 2
    assert of_counted("taskapp_rewards_sum") == of_counted("taskapp_outcome_scores_sum") == 0.5
    assert value(found, "taskapp_rewards_sum", environment="other") == -1.0, "a reward may be negative"
    assert value(found, "taskapp_outcome_scores_total", environment="other") == 0
    assert value(found, "taskapp_capacity") == 1024
    idle = ("taskapp_hung_threads", "taskapp_draining", "taskapp_in_flight")
    assert [value(found, name) for name in idle] == [0, 0, 0]
    assert value(found, "taskapp_workers") == (1 if workers else None)
    assert (value(found, "process_resident_memory_bytes") or 0) > 1e6
    assert (value(found, "process_open_fds") or 0) > 1
    assert (value(found, "process_cpu_seconds_total") or 0) > 0


def told() -> Metrics:
    class Late:
        lag_seconds, blocked, blocked_seconds = 0.5, 2, 1.5

    measures = Metrics(["e"], lambda: {"status": "draining", "in_flight": 2, "capacity": 8, "hung_threads": 8,
                                        "workers": {"alive": 2, "replaced": 3, "killed": 4, "hung": 5, "waiting": 6}})  # fmt: skip
    measures.loop = Late()
    measures.answered("GET", "/blobs/{sha256}", 404)
    measures.answered("GET", "/blobs/{sha256}", 404)
    measures.count_key_refusal("unauthorised")
    measures.store_failed()
    return measures


@pytest.mark.parametrize("as_open", [False, True])
def test_both_metric_formats_parse_to_the_same_samples(as_open: bool) -> None:
    accept = (
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;q=0.1" if as_open else "*/*"
    )
    body, content_type = render(told().snapshot(), accept)
    assert content_type.startswith(
        "application/openmetrics-text; version=1.0.0" if as_open else "text/plain; version=0.0.4"
    )
    found = read(body, as_open=as_open)
    assert value(found, "taskapp_http_responses_total", method="GET", route="/blobs/{sha256}", status="404") == 2
    assert value(found, "taskapp_http_refusals_total", code="unauthorised") == 1
    assert value(found, "taskapp_store_errors_total") == 1
    assert value(found, "taskapp_draining") == 1
    names = ("taskapp_workers", "taskapp_workers_replaced_total", "taskapp_workers_killed_total", "taskapp_workers_hung_total", "taskapp_workers_waiting")  # fmt: skip
    assert [value(found, name) for name in names] == [2, 3, 4, 5, 6]
    assert value(found, "taskapp_event_loop_lag_seconds") == 0.5
    assert value(found, "taskapp_event_loop_blocked_total") == 2
    assert value(found, "taskapp_event_loop_blocked_seconds_total") == 1.5


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "application/openmetrics-text; version=\x00bad",
        "application/openmetrics-text;version=9.9.x",
        ",;,",
        "text/plain;version=oops",
    ],
)
def test_any_accept_header_returns_metrics(accept: str) -> None:
    body, content_type = render(told().snapshot(), accept)
    assert b"taskapp_store_errors_total 1.0" in body
    assert "bad" not in content_type
    assert "9.9" not in content_type


def test_snapshot_does_not_change_after_it_was_taken() -> None:
    measures = told()
    before = measures.snapshot()
    text = render(before)[0]
    measures.answered("GET", "/", 200)
    measures.store_failed()
    own = [line for line in render(before)[0].splitlines() if line.startswith(b"taskapp")]
    assert own == [line for line in text.splitlines() if line.startswith(b"taskapp")]


@given(st.lists(st.floats(0, 1e4), max_size=30))
def test_histogram_bucket_includes_its_upper_bound(durations: Iterable[float]) -> None:
    measures = Metrics(["e"], dict)
    for seconds in durations:
        measures.ended(*_ended(seconds))
    found = read(render(measures.snapshot())[0])
    for bound in SECONDS:
        expected = sum(seconds <= bound for seconds in durations)
        assert value(found, "taskapp_rollout_seconds_bucket", environment="e", le=str(bound)) == expected


def test_tokens_are_counted_under_the_kits_names() -> None:
    measures = Metrics(["e"], dict)
    course, finished = _ended(1.0)
    finished.usage = {
        "prompt_tokens": 10.0,
        "completion_tokens": 4.0,
        "a caller's text": 9.0,
        "total_tokens": 14.0,
        "output_tokens": -3.0,
    }
    measures.ended(course, finished)
    found = read(render(measures.snapshot())[0])
    tokens = {
        dict(labels)["kind"]: number for (name, labels), number in found.items() if name == "taskapp_tokens_total"
    }
    assert tokens == {"input": 10, "output": 4}


def _ended(seconds: float) -> tuple[Any, Any]:
    """A rollout that took so long, as a RolloutObserver is given it."""
    from taskapp_kit.records.rollout import Rollout
    from taskapp_kit.rollout.admission import RunningRollout

    result = Rollout(a_request("noop"), "noop", "e", "1", "train", 0, "truncated", "max_steps", 1, 0.0, {}, {})
    result.timing = {"total": seconds}
    course = RunningRollout("id", None, Caller(), 1.0, 1.0, 60.0)  # type: ignore[arg-type]  # what was planned is not looked at
    return course, result


@pytest.mark.process
@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        (
            "taskapp_kit.serve.telemetry.metrics, taskapp_kit.serve.telemetry.tracing, taskapp_kit.rollout.service",
            ("prometheus_client", "opentelemetry"),
        ),
        ("taskapp_kit.asgi, taskapp_kit.serve.app", ("prometheus_client", "opentelemetry.sdk")),
    ],
)
def test_prometheus_client_is_loaded_at_the_first_scrape(modules: str, absent: tuple[str, ...]) -> None:
    code = f"import sys, {modules}; print([name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_page_lists_every_metric() -> None:
    from taskapp_kit.serve.telemetry.metrics import _Read

    page = (Path(__file__).parents[2] / "docs/operate/observability.md").read_text()
    families = list(_Read(told().snapshot()).collect())
    names = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    assert len(names) == len(families) > 20
    assert not {name for name in names if f"`{name}`" not in page}


# -- over HTTP -----------------------------------------------------------------------------------------------------


def scraped(running: RunningServer) -> Samples:
    response = running.client.get("/metrics", headers={"Accept": "application/openmetrics-text"})
    assert (response.status_code, response.headers["cache-control"]) == (200, "no-store")
    return read(response.content, as_open=True)


def total(samples: Samples, name: str, **labels: str) -> float:
    """The sum of the samples that have these labels."""
    return sum(value for (other, having), value in samples.items() if other == name and labels.items() <= having)


@pytest.mark.server
def test_answers_and_rollouts_of_a_server_are_counted() -> None:
    with opened() as running, opened() as other:
        bodies = (request_body(), request_body("broken", "going"), request_body(policy="lost"))
        for body in (*bodies, {"run_id": 7}):
            running.client.post("/rollout", json=body)
        for path in ("/blobs/" + "0" * 64, "/blobs/" + "1" * 64, "/no-such-path"):
            running.client.get(path)
        running.stranger.get("/health")
        running.client.request("PROPFIND", "/no-such-path")
        with pytest.raises(httpx.ReadTimeout):
            slow = request_body("slow", "waiting", safety={"max_ops": 20}, config={"seconds": 0.2})
            running.client.post("/rollout", json=slow, timeout=0.5)
        until(lambda: total(scraped(running), "taskapp_rollouts_total", boundary="cancelled"), 10)
        found = scraped(running)
        assert total(scraped(other), "taskapp_rollouts_total") == 0, "each service has its own numbers"
    rollouts = {("counter", ""): 1, ("counter", "policy"): 1, ("broken", "environment"): 1, ("slow", "cancelled"): 1}
    for (environment, boundary), count in rollouts.items():
        labels = {"environment": environment, "boundary": boundary, "key": "environment"}
        assert total(found, "taskapp_rollouts_total", **labels) == count, labels
    answers = {("POST", "/rollout", 200): 1, ("POST", "/rollout", 500): 1, ("POST", "/rollout", 502): 1, ("POST", "/rollout", 422): 1,
               ("POST", "/rollout", 499): 1, ("GET", "/blobs/{sha256}", 404): 2, ("GET", "(none)", 404): 1}  # fmt: skip
    for (method, route, status), count in answers.items():
        labels = {"method": method, "route": route, "status": str(status)}
        assert total(found, "taskapp_http_responses_total", **labels) == count, labels
    assert total(found, "taskapp_http_refusals_total", code="unauthorised") == 1
    assert total(found, "taskapp_connections") >= 1
    assert any(name == "taskapp_event_loop_lag_seconds" for name, _ in found)
    labelled = {name: [dict(labels) for other, labels in found if other == name] for name, _ in found}
    assert {labels["cause"] for labels in labelled["taskapp_connections_ended_total"]} == set(CAUSES)
    answered = labelled["taskapp_http_responses_total"]
    assert all(re.fullmatch(r"/[a-z_]*(/\{[a-z0-9_]+\})?|\(none\)", labels["route"]) for labels in answered), answered
    assert {labels["method"] for labels in answered} == {"GET", "POST", "(other)"}


@pytest.mark.server
def test_metrics_and_log_contain_no_key_and_no_caller_text(caplog: pytest.LogCaptureFixture) -> None:
    text = "callers-own-words"
    settings = Settings(environment_api_key=KEY, environment_api_key_aliases=(SECOND,))
    with caplog.at_level(logging.DEBUG), opened(settings) as running:
        body = request_body(policy="one", run_id=text, group_id=text, record={"trace": text}, trace_correlation_id=text)
        running.client.post(
            "/rollout", json={**body, "policy": {"policy_name": "one", "config": {"api_key": KEY, "model": text}}}
        )
        running.client.post("/rollout", json=request_body(text, text))
        running.client.get(f"/{text}", params={"key": KEY})
        running.client.get(f"/{KEY}")
        running.client.get(f"/blobs/{SECOND}")
        running.client.post("/rollout", json=request_body(), headers={"X-API-Key": SECOND, "traceparent": text})
        running.stranger.get("/health", headers={"X-API-Key": KEY + "x"})
        for accept in ("*/*", "application/openmetrics-text"):
            shown = running.client.get("/metrics", headers={"Accept": accept}).text
            assert not fragments(shown, KEY, SECOND)
            assert text not in shown
    ours = [item for item in caplog.records if item.name.startswith(("taskapp_kit", "uvicorn"))]
    assert [item for item in ours if "rollout_id=" in item.getMessage()]
    assert not fragments("".join(item.getMessage() + repr(vars(item)) for item in ours), KEY, SECOND)
