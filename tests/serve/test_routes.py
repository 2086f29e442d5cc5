"""Every route against a real server and a real service: shapes, errors, and what is never told."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import logging
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from taskapp_kit.config import Settings
from taskapp_kit.errors import StoreError
from taskapp_kit.records.protocols import Clock, StoredRollout
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.rollout.service import Service
from taskapp_kit.serve.openapi_models import Info, TaskInfo, Taskset
from taskapp_kit.wire.rollout import RolloutRequest, RolloutResponse
from tests.serve.running_server import KEY, PNG, RunningServer, Slow, error_of, opened, refused_fields, request_body
from tests.waiting import until

pytestmark = pytest.mark.server

SEEDS_IN_WORDS = "train 0 to 63; test 64 to 79"


def test_health(running: RunningServer) -> None:
    body = running.client.get("/health").json()
    assert body["healthy"] is True and body["status"] == "healthy" and body["auth"] == {"required": True}
    assert body["in_flight"] == 0 and body["capacity"] == 64 and body["version"]
    assert "expected_prefix" not in json.dumps(body)


def test_done(running: RunningServer) -> None:
    for content in (b"", b"{}", b"not json"):
        assert running.client.post("/done", content=content).json() == {"ok": True, "service": "yard"}


def test_info(running: RunningServer) -> None:
    body = running.client.get("/info").json()
    Info.model_validate(body)
    assert body["service"]["task"] == {
        "id": "yard", "name": "yard", "description": "A yard to knock things over in.", "version": "2.1.0",
    }  # fmt: skip
    assert body["dataset"]["splits"] == ["train", "test"] and body["dataset"]["cardinality"] == 80
    (criterion,) = body["rubrics"]["outcome"]["criteria"]
    assert criterion == {"id": "reached", "description": "The target was hit.", "weight": 3.0, "required": False,
                         "scale": [0.0, 1.0]}  # fmt: skip
    assert body["rubrics"]["events"] is None
    assert set(body["environments"]) == {"counter", "broken", "slow", "pictures", "quiz"}


def test_the_task_set(running: RunningServer) -> None:
    body = running.client.get("/task_info").json()
    Taskset.model_validate(body)
    taskset = body["taskset"]
    assert taskset["seeds"] == {"train": [0, 64], "test": [64, 80]}
    assert (taskset["default_split"], taskset["cardinality"]) == ("train", 80)


def test_one_task(running: RunningServer) -> None:
    body = running.client.get("/task_info", params={"seed": 70}).json()
    TaskInfo.model_validate(body)
    assert body["environment"] == "counter" and body["task_metadata"] == {"seed": 70, "split": "test"}
    (tool,) = body["action_space"]["tools"]
    assert tool["name"] == "increment" and tool["description"] == "Add `by`."
    assert tool["parameters"]["properties"]["by"]["type"] == "integer"
    assert body["config_schema"]["properties"]["low"]["default"] == 3
    assert body["reward"]["formula"] == "reward = 1 · outcome_score"
    assert body["limits"]["timeout_seconds"] == 3600 and body["limits"]["max_steps"] == 12
    assert body["inference"]["policies"][:2] == ["one", "lost"]


def test_many_tasks_seed_first(running: RunningServer) -> None:
    body = running.client.get("/task_info?seeds=5&seed=3&seeds=4&seed=1").json()
    assert [item["task_metadata"]["seed"] for item in body] == [3, 1, 5, 4]
    assert len(running.client.get("/task_info?" + "&".join(f"seed={n}" for n in range(64))).json()) == 64


def test_tasks_of_another_environment_and_split(running: RunningServer) -> None:
    for name in ("environment", "env_name"):
        body = running.client.get("/task_info", params={name: "quiz", "seed": 0, "split": "test"}).json()
        assert body["task_metadata"] == {"seed": 0, "split": "test", "row": {"question": "One and one?"}}


def test_private_fields_of_a_row_never_show(running: RunningServer) -> None:
    answers = [
        running.client.get(path).text
        for path in (
            "/info",
            "/task_info?environment=quiz",
            "/task_info?environment=quiz&seed=0&seed=1",
            "/openapi.json",
        )
    ]
    answers.append(
        running.client.post(
            "/rollout",
            json=request_body("quiz", "constant") | {"policy": {"config": {"policy": "constant", "action": "five"}}},
        ).text
    )
    assert all("sentinel" not in answer for answer in answers)
    assert json.loads(answers[-1])["metrics"]["outcome_score"] == 0.0


@pytest.mark.parametrize(
    ("query", "field", "said"),
    [
        ("seed=abc", "seed", SEEDS_IN_WORDS),
        ("seed=", "seed", SEEDS_IN_WORDS),
        ("seed=1.0", "seed", SEEDS_IN_WORDS),
        ("seed=1e2", "seed", SEEDS_IN_WORDS),
        ("seed=0x10", "seed", SEEDS_IN_WORDS),
        ("seed=%201", "seed", SEEDS_IN_WORDS),
        ("seed=+1", "seed", SEEDS_IN_WORDS),
        ("seed=1_0", "seed", SEEDS_IN_WORDS),
        ("seed=%D9%A3", "seed", SEEDS_IN_WORDS),
        ("seed=true", "seed", SEEDS_IN_WORDS),
        ("seed=null", "seed", SEEDS_IN_WORDS),
        ("seeds=1,2", "seeds", SEEDS_IN_WORDS),
        ("seeds=[1]", "seeds", SEEDS_IN_WORDS),
        ("seed=-1", "seed", "-1"),
        ("seed=80", "seed", "80"),
        ("seed=9223372036854775807", "seed", "9223372036854775807"),
        ("seed=9223372036854775808", "seed", "9223372036854775808"),
        ("seed=" + "9" * 400, "seed", "400 digits"),
        ("seed=1&seeds=99", "seed", "99"),
        ("seed=1&split=test", "seed", "seed 1"),
        ("seed=1&split=none", "split", "train, test"),
        ("split=none", "split", "train, test"),
        ("environment=none", "environment", "counter"),
        ("environment=none&seed=1", "environment", "counter"),
        ("environment=quiz&env_name=slow", "env_name", "more than once"),
        ("environment=quiz&seed=2", "seed", "0 to 1"),
        ("&".join(["seed=1"] * 1001), "seeds", "1000"),
        ("&".join(["x=1"] * 2001), "seeds", "2000"),
    ],
)
def test_a_wrong_question_is_422_naming_what(running: RunningServer, query: str, field: str, said: str) -> None:
    response = running.client.get("/task_info?" + query)
    assert response.status_code == 422, response.text[:200]
    error = error_of(response)
    (problem,) = error["fields"]  # type: ignore[misc]
    assert problem["loc"] == ["query", field] and said in problem["message"], problem
    if field == "seed" and said != "400 digits":
        assert "to" in str(error["message"]), "the range is told"


def test_debug_env_is_off_and_tells_booleans_only() -> None:
    settings = Settings(environment_api_key=KEY, variables={"OPENAI_API_KEY": "sk-sentinel"})
    with opened(settings) as off:
        assert off.client.get("/debug/env").status_code == 404
    with opened(Settings(environment_api_key=KEY, debug_env=True, variables=settings.variables)) as on:
        assert on.stranger.get("/debug/env").status_code == 401
        assert on.client.get("/debug/env").json() == {
            "has_ENVIRONMENT_API_KEY": True, "has_OPENAI_API_KEY": True, "has_GROQ_API_KEY": False,
        }  # fmt: skip


def test_a_rollout_is_answered_whole(running: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="taskapp_kit.serve"):
        response = running.client.post("/rollout", json=request_body(seed=7, group_id="g"))
    body = response.json()
    RolloutResponse.model_validate(body)
    assert response.status_code == 200 and response.headers["content-type"] == "application/json"
    assert body["metrics"]["mean_return"] == 1.0 and body["reward"] == 1.0 and body["group_id"] == "g"
    steps = body["trajectories"][0]["steps"]
    assert len(steps) == body["metrics"]["num_steps"] == body["trajectories"][0]["length"]
    (line,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("rollout ")]
    assert body["rollout_id"] in line and "key=environment" in line and "seed=7" in line and "\n" not in line


def test_trajectories_may_be_left_out(running: RunningServer) -> None:
    body = running.client.post("/rollout", json=request_body(record={"trajectories": False})).json()
    RolloutResponse.model_validate(body)
    (trajectory,) = body["trajectories"]
    assert trajectory["steps"] == [] and trajectory["length"] == body["metrics"]["num_steps"] > 0
    assert body["reward"] == 1.0


def test_equal_requests_have_equal_digests(running: RunningServer) -> None:
    digests = {running.client.post("/rollout", json=request_body(seed=3)).json()["digest"] for _ in range(3)}
    assert len(digests) == 1


def test_a_picture_may_be_fetched_by_its_hash(running: RunningServer) -> None:
    name = hashlib.sha256(PNG).hexdigest()
    running.client.post("/rollout", json=request_body("pictures", "looking"))
    response = running.client.get(f"/blobs/{name}")
    assert response.content == PNG and response.headers["content-type"] == "image/png"
    assert "immutable" in response.headers["cache-control"] and "private" in response.headers["cache-control"]
    assert running.stranger.get(f"/blobs/{name}").status_code == 401


@pytest.mark.parametrize("name", ["0" * 64, "0" * 63, "A" * 64, "x", "%2e%2e%2fetc", "0" * 64 + ".png", "0" * 5000])
def test_a_picture_that_is_not_there(running: RunningServer, name: str) -> None:
    response = running.client.get(f"/blobs/{name}")
    assert response.status_code == 404
    assert error_of(response)["code"] == "not_found"


@pytest.mark.parametrize("seed", [0, 1])
def test_a_broken_environment_is_500(running: RunningServer, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    response = running.client.post("/rollout", json=request_body("broken", "going", seed=seed))
    error = error_of(response)
    assert response.status_code == 500 and error["boundary"] == "environment"
    assert error["rollout_id"] and error["error_id"]
    assert "sentinel" not in response.text
    (line,) = [record.getMessage() for record in caplog.records if "rollout failed" in record.getMessage()]
    assert str(error["error_id"]) in line and str(error["rollout_id"]) in line
    (record,) = [record for record in caplog.records if record.exc_info]
    assert str(error["error_id"]) in record.getMessage()
    assert record.exc_info and "sentinel-detail-of-the-environment" in str(record.exc_info[1])


def test_a_broken_policy_is_502(running: RunningServer) -> None:
    response = running.client.post("/rollout", json=request_body(policy="lost"))
    assert response.status_code == 502 and error_of(response)["boundary"] == "policy"
    assert "sentinel" not in response.text


def test_a_rubric_that_raises_is_500(running: RunningServer) -> None:
    response = running.client.post("/rollout", json=request_body("pictures", "looking"))
    assert response.status_code == 500 and error_of(response)["boundary"] == "scoring"
    assert "sentinel" not in response.text


def test_a_deadline_that_passes_is_504(running: RunningServer) -> None:
    body = request_body("slow", "waiting", safety={"max_time_s": 0.5})
    response = running.client.post("/rollout", json=body)
    assert response.status_code == 504 and error_of(response)["boundary"] == "timeout"
    assert "reward" not in response.json()


def test_an_unknown_policy_is_422(running: RunningServer) -> None:
    response = running.client.post("/rollout", json=request_body(policy="nobody"))
    assert response.status_code == 422 and "fields" in error_of(response)


def test_an_unknown_policy_name_without_an_address_says_what_a_model_needs(running: RunningServer) -> None:
    response = running.client.post("/rollout", json=request_body() | {"policy": {"policy_name": "gpt-5"}})
    assert (response.status_code, error_of(response)["code"]) == (422, "unknown_policy")
    assert "policy.config.inference_url" in error_of(response)["hint"]


NAMES = [
    ("run_id",), ("group_id",), ("trace_correlation_id",), ("training_session_id",), ("env", "env_id"), ("env", "env_name"),
    ("policy", "policy_id"), ("policy", "policy_name"), ("policy", "config", "trace_correlation_id"),
    ("policy", "config", "trace"),
]  # fmt: skip


def named(place: tuple[str, ...], name: str) -> dict[str, Any]:
    """The good body with a name at this place."""
    body: dict[str, Any] = request_body()
    member = body
    for part in place[:-1]:
        member = member.setdefault(part, {})
    member[place[-1]] = name
    return body


def test_a_name_with_control_characters_is_refused(running: RunningServer) -> None:
    for place, control in itertools.product(NAMES, ("\0", "\n", "\x1b", "\x7f", "\x9b")):
        found = refused_fields(running, json.dumps(named(place, f"name{control}")).encode())
        assert found == [(["body", *place], "string_pattern_mismatch")], (place, control)


def test_a_name_with_control_characters_is_422_and_not_repeated(running: RunningServer) -> None:
    response = running.client.post("/rollout", json=named(("run_id",), "name\x9b"))
    assert response.status_code == 422, response.text
    (field,) = error_of(response)["fields"]
    assert (field["loc"], field["type"]) == (["body", "run_id"], "string_pattern_mismatch")
    assert "\x9b" not in response.text


def test_a_correlation_id_with_control_characters_in_the_address_is_422(running: RunningServer) -> None:
    body = request_body()
    body["policy"]["config"]["inference_url"] = "http://127.0.0.1:9/v1?cid=a%00b"
    response = running.client.post("/rollout", json=body)
    assert response.status_code == 422, response.text
    assert error_of(response)["fields"][0]["loc"] == ["body", "policy", "config", "inference_url"]


def test_other_letters_in_names_are_taken_and_given_back(running: RunningServer) -> None:
    body = request_body() | {"run_id": "Läufe 走 \u200d", "trace_correlation_id": "trace/1?x=ä"}
    response = running.client.post("/rollout", json=body)
    assert response.status_code == 200, response.text
    told = response.json()
    assert (told["run_id"], told["trace_correlation_id"]) == (body["run_id"], body["trace_correlation_id"])


def test_an_address_that_is_no_text_is_what_is_refused(running: RunningServer) -> None:
    urls = (5, True, ["http://127.0.0.1:9/v1"], {"url": "http://127.0.0.1:9/v1"})
    programs: tuple[list[Any], ...] = ([], [{"tool": "add", "args": {"amount": 1}}])
    for url, policy, ops in itertools.product(urls, ("nobody", "random", None), programs):
        body = request_body() | {"policy": {"policy_name": policy, "config": {"inference_url": url}}, "ops": ops}
        found = refused_fields(running, json.dumps(body).encode())
        assert found == [(["body", "policy", "config", "inference_url"], "type_error")], (url, policy, ops)


def test_what_needs_a_store_is_422_without_one(running: RunningServer) -> None:
    body = request_body() | {"policy": {"config": {"policy": "replay", "rollout_id": "x"}}}
    response = running.client.post("/rollout", json=body)
    assert response.status_code == 422 and error_of(response)["code"] == "unavailable"


class FullStore:
    """A store whose disk is full."""

    async def save(self, rollout: StoredRollout) -> None:
        raise StoreError("sentinel-path: no space left")

    async def load(self, rollout_id: str) -> StoredRollout | None:
        return None

    async def blob(self, sha256: str) -> bytes | None:
        return None

    async def recent(self, limit: int = 50, *, environment: str | None = None) -> list[StoredRollout]:
        return []

    def coordinator(self, clock: Clock) -> None:
        return None

    async def close(self) -> None:
        return None


def test_what_cannot_be_kept_is_not_answered() -> None:
    with opened(store=FullStore()) as full:
        response = full.client.post("/rollout", json=request_body())
        error = error_of(response)
        assert response.status_code == 500 and error["code"] == "store_failed" and error["error_id"]
        assert "sentinel" not in response.text


class Forgetful(Service):
    """A service whose answers are not JSON."""

    async def rollout(self, request: RolloutRequest, **more: Any) -> Rollout:
        played = await super().rollout(request, **more)
        played.digest = object()  # type: ignore[assignment]
        return played


def test_an_answer_that_cannot_be_written_is_500(caplog: pytest.LogCaptureFixture) -> None:
    with opened(make=Forgetful) as odd:
        response = odd.client.post("/rollout", json=request_body())
    error = error_of(response)
    assert response.status_code == 500 and error["code"] == "internal_error"
    assert any(str(error["error_id"]) in record.getMessage() for record in caplog.records)


def test_one_too_many_is_told_to_come_back() -> None:
    with opened(max_concurrent=1) as narrow:
        slow = request_body("slow", "waiting", safety={"max_ops": 4}, config={"seconds": 2.0})
        results: list[Any] = []
        first = threading.Thread(target=lambda: results.append(narrow.client.post("/rollout", json=slow)))
        first.start()
        until(lambda: narrow.stranger.get("/health", headers={"X-API-Key": KEY}).json()["in_flight"] == 1)
        second = narrow.stranger.post("/rollout", json=request_body(), headers={"X-API-Key": KEY})
        assert not results, "both were answered while the rollout ran"
        Slow.released.set()
        first.join()
        Slow.released.clear()
    assert second.status_code == 503 and error_of(second)["code"] == "saturated"
    assert int(second.headers["retry-after"]) >= 1
    assert results[0].status_code == 200


def test_a_rollout_stops_when_the_caller_hangs_up(running: RunningServer) -> None:
    closed = Slow.closed
    body = json.dumps(request_body("slow", "waiting", config={"seconds": 0.1})).encode()
    head = f"POST /rollout HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((running.server.host, running.server.port)) as connection:
        connection.sendall(head.encode() + body)
        time.sleep(0.4)
        assert running.client.get("/health").json()["in_flight"] == 1
    end = time.monotonic() + 3
    while running.client.get("/health").json()["in_flight"] or Slow.closed == closed:
        assert time.monotonic() < end, "the rollout went on for nobody"
        time.sleep(0.05)


def test_many_at_once(running: RunningServer) -> None:
    import httpx

    async def main() -> list[int]:
        async with httpx.AsyncClient(base_url=running.url, headers={"X-API-Key": KEY}, timeout=30) as client:
            answers = await asyncio.gather(
                *(client.post("/rollout", json=request_body(seed=n % 64)) for n in range(60))
            )
        assert [answer.json()["pipeline_metadata"]["seed"] for answer in answers] == [n % 64 for n in range(60)]
        return [answer.status_code for answer in answers]

    assert set(asyncio.run(main())) == {200}


def test_a_key_has_its_quota_over_http(tmp_path: Path) -> None:
    """The one that is too many is refused, other keys are not, and a place is free again when an answer was read."""
    keys = tmp_path / "keys"
    keys.write_text("one first-key-of-three max_in_flight=1\ntwo second-key-of-three max_in_flight=1\n")
    slow = request_body("slow", "waiting", safety={"max_ops": 2}, config={"seconds": 1.5})

    def post(running: RunningServer, key: str, body: dict[str, object]) -> httpx.Response:
        return httpx.post(running.url + "/rollout", json=body, headers={"X-API-Key": key}, timeout=20)

    with opened(Settings(keys_file=keys)) as running, ThreadPoolExecutor() as pool:
        running = pool.submit(post, running, "first-key-of-three", slow)
        while not running.service.in_flight:
            assert not running.done()
        refused = post(running, "first-key-of-three", request_body())
        assert (refused.status_code, error_of(refused)["code"]) == (429, "key_quota_reached")
        assert int(refused.headers["retry-after"]) >= 1
        assert post(running, "second-key-of-three", request_body()).status_code == 200
        Slow.released.set()
        assert running.result().status_code == 200
        Slow.released.clear()
        assert post(running, "first-key-of-three", request_body()).status_code == 200
