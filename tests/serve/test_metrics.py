"""`/metrics` on a running server: numbers after real requests, formats, the key, and what must not be in it."""

from __future__ import annotations

import logging
import re
import time

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as text_format

from taskapp_kit.config import Settings
from taskapp_kit.serve.connection_limits import CAUSES
from tests.serve.running_server import KEY, RunningServer, fragments, opened, request_body

pytestmark = pytest.mark.server

SECOND = "0b55e8d2-S3same-zw1/te+q"
"""The other key: no six letters of it are a word that a server may say."""


def scraped(running: RunningServer, accept: str = "*/*") -> dict[str, list[tuple[dict[str, str], float]]]:
    """Samples by name: their labels and values."""
    response = running.client.get("/metrics", headers={"Accept": accept})
    assert response.status_code == 200, response.text
    parse = open_metrics if "openmetrics" in response.headers["content-type"] else text_format
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in parse(response.text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def count(found: dict[str, list[tuple[dict[str, str], float]]], name: str, **labels: str) -> float:
    """The sum of the samples that have these labels."""
    return sum(value for having, value in found.get(name, []) if labels.items() <= having.items())


@pytest.mark.parametrize("accept", ["*/*", "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"])
def test_what_happened_is_counted(accept: str) -> None:
    with opened() as running:
        for body in (
            request_body(),
            request_body("broken", "going"),
            request_body("pictures", "looking"),
            request_body(policy="lost"),
        ):
            running.client.post("/rollout", json=body)
        assert running.client.post("/rollout", json={"run_id": 7}).status_code == 422
        running.client.get("/blobs/" + "0" * 64)
        running.client.get("/blobs/" + "1" * 64)
        assert running.stranger.get("/health").status_code == 401
        assert running.stranger.post("/rollout", json=request_body()).status_code == 401
        assert running.client.get("/no-such-path").status_code == 404
        assert running.client.request("PROPFIND", "/no-such-path").status_code == 404
        with pytest.raises(httpx.ReadTimeout):
            slow = request_body("slow", "waiting", safety={"max_ops": 20}, config={"seconds": 0.2})
            httpx.post(running.url + "/rollout", json=slow, headers={"X-API-Key": KEY}, timeout=0.5)
        end = time.monotonic() + 10
        while not count(scraped(running), "taskapp_rollouts_total", boundary="cancelled") and time.monotonic() < end:
            time.sleep(0.05)
        found = scraped(running, accept)

    def rollouts(environment: str, status: str, boundary: str) -> float:
        return count(
            found,
            "taskapp_rollouts_total",
            environment=environment,
            status=status,
            boundary=boundary,
            key="environment",
        )

    assert rollouts("counter", "terminated", "") == 1
    assert rollouts("counter", "failed", "policy") == 1
    assert rollouts("broken", "failed", "environment") == 1
    assert rollouts("pictures", "failed", "scoring") == 1
    assert rollouts("slow", "failed", "cancelled") == 1
    assert count(found, "taskapp_rollouts_total") == 5

    def answers(method: str, route: str, status: int) -> float:
        return count(found, "taskapp_http_responses_total", method=method, route=route, status=str(status))

    assert answers("POST", "/rollout", 200) == 1
    assert answers("POST", "/rollout", 500) == 2
    assert answers("POST", "/rollout", 502) == 1
    assert answers("POST", "/rollout", 422) == 1
    assert answers("POST", "/rollout", 499) == 1
    assert answers("GET", "/blobs/{sha256}", 404) == 2
    assert answers("GET", "(none)", 404) == 1
    assert count(found, "taskapp_http_refusals_total", code="unauthorised") == 2
    assert count(found, "taskapp_in_flight") == 0
    assert count(found, "taskapp_capacity") == 64
    assert count(found, "taskapp_rewards_sum", environment="counter") == 1
    assert "taskapp_event_loop_lag_seconds" in found
    assert count(found, "taskapp_connections") >= 1
    assert {labels["cause"] for labels, _ in found["taskapp_connections_ended_total"]} == set(CAUSES)
    assert count(found, "taskapp_connections_ended_total") == 0
    assert count(found, "process_resident_memory_bytes") > 1e6
    routes = {labels["route"] for labels, _ in found["taskapp_http_responses_total"]}
    assert all(re.fullmatch(r"/[a-z_]*(/\{[a-z0-9_]+\})?|\(none\)", route) for route in routes), routes
    methods = {labels["method"] for labels, _ in found["taskapp_http_responses_total"]}
    assert methods == {"GET", "POST", "(other)"}


def test_each_service_has_its_own_numbers() -> None:
    with opened() as one, opened() as two:
        one.client.post("/rollout", json=request_body())
        assert count(scraped(one), "taskapp_rollouts_total") == 1
        assert count(scraped(two), "taskapp_rollouts_total") == 0


def test_no_key_and_no_callers_text_is_in_numbers_or_log(caplog: pytest.LogCaptureFixture) -> None:
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
