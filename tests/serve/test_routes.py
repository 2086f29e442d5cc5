"""Every route against a real server and a real service: shapes, errors, and what is never told."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
from typing import Any

import pytest

from taskapp_kit.config import Settings
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.rollout.service import Service
from taskapp_kit.serve.openapi_models import Info, TaskInfo, Taskset
from taskapp_kit.wire.rollout import RolloutRequest, RolloutResponse
from tests.serve.running_server import KEY, PNG, RunningServer, error_of, opened, refused_fields, request_body

pytestmark = pytest.mark.server


def test_health(running: RunningServer) -> None:
    body = running.client.get("/health").json()
    assert body["healthy"] is True and body["status"] == "healthy" and body["auth"] == {"required": True}
    assert body["in_flight"] == 0 and body["capacity"] == 64 and body["version"]
    assert "expected_prefix" not in json.dumps(body)


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
    paths = ("/info", "/task_info?environment=quiz", "/task_info?environment=quiz&seed=0&seed=1", "/openapi.json")
    assert not [path for path in paths if "sentinel" in running.client.get(path).text]
    body = request_body("quiz") | {"policy": {"config": {"policy": "constant", "action": "five"}}}
    answer = running.client.post("/rollout", json=body)
    assert "sentinel" not in answer.text and answer.json()["metrics"]["outcome_score"] == 0.0


@pytest.mark.parametrize(
    "seed",
    ["abc", "", "1.0", "1e2", "0x10", "%201", "+1", "1_0", "%D9%A3", "true", "null", "1,2", "[1]", "-1", "80", "9223372036854775807",
     "9223372036854775808", "9" * 400, "1&seed=99", "1&split=test"],
)  # fmt: skip
@pytest.mark.parametrize("name", ["seed", "seeds"])
def test_a_seed_that_no_split_has_is_422(running: RunningServer, name: str, seed: str) -> None:
    response = running.client.get(f"/task_info?{name}={seed}")
    error = error_of(response)
    assert (response.status_code, error["fields"][0]["loc"][0]) == (422, "query")  # type: ignore[index]
    assert error["fields"][0]["loc"][1] in ("seed", name)  # type: ignore[index]
    assert "9" * 50 not in response.text


@pytest.mark.parametrize(
    ("query", "field"),
    [("seed=1&split=none", "split"), ("split=none", "split"), ("environment=none", "environment"),
     ("environment=none&seed=1", "environment"), ("environment=quiz&env_name=slow", "env_name"),
     ("environment=quiz&seed=2", "seed"), ("&".join(["seed=1"] * 1001), "seeds"), ("&".join(["x=1"] * 2001), "seeds")],
)  # fmt: skip
def test_invalid_query_returns_422_naming_the_parameter(running: RunningServer, query: str, field: str) -> None:
    response = running.client.get("/task_info?" + query)
    (problem,) = error_of(response)["fields"]  # type: ignore[misc]
    assert (response.status_code, problem["loc"]) == (422, ["query", field])


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


def test_image_can_be_fetched_by_its_hash(running: RunningServer) -> None:
    name = hashlib.sha256(PNG).hexdigest()
    running.client.post("/rollout", json=request_body("pictures", "looking"))
    response = running.client.get(f"/blobs/{name}")
    assert response.content == PNG and response.headers["content-type"] == "image/png"
    assert "immutable" in response.headers["cache-control"] and "private" in response.headers["cache-control"]
    assert running.stranger.get(f"/blobs/{name}").status_code == 401


@pytest.mark.parametrize("name", ["0" * 64, "0" * 63, "A" * 64, "x", "%2e%2e%2fetc", "0" * 64 + ".png", "0" * 5000])
def test_unknown_image_returns_404(running: RunningServer, name: str) -> None:
    response = running.client.get(f"/blobs/{name}")
    assert response.status_code == 404
    assert error_of(response)["code"] == "not_found"


@pytest.mark.parametrize(
    ("body", "status", "boundary"),
    [
        (request_body("broken", "going", seed=0), 500, "environment"),
        (request_body("broken", "going", seed=1), 500, "environment"),
        (request_body(policy="lost"), 502, "policy"),
        (request_body("pictures", "looking"), 500, "scoring"),
        (request_body("slow", "waiting", safety={"max_time_s": 0.5}), 504, "timeout"),
    ],
    ids=["reset", "step", "policy", "rubric", "deadline"],
)
def test_a_failure_has_its_status_and_boundary_and_tells_no_details(
    running: RunningServer, body: dict[str, object], status: int, boundary: str, caplog: pytest.LogCaptureFixture
) -> None:
    response = running.client.post("/rollout", json=body)
    error = error_of(response)
    assert (response.status_code, error["boundary"]) == (status, boundary)
    assert "sentinel" not in response.text and "reward" not in response.json()
    (line,) = [record.getMessage() for record in caplog.records if "rollout failed" in record.getMessage()]
    assert str(error["error_id"]) in line and str(error["rollout_id"]) in line
    causes = [record for record in caplog.records if record.exc_info]
    assert boundary == "timeout" or [str(error["error_id"]) in record.getMessage() for record in causes] == [True]


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


def test_non_ascii_names_are_returned_unchanged(running: RunningServer) -> None:
    body = request_body() | {"run_id": "Läufe 走 \u200d", "trace_correlation_id": "trace/1?x=ä"}
    response = running.client.post("/rollout", json=body)
    assert response.status_code == 200, response.text
    told = response.json()
    assert (told["run_id"], told["trace_correlation_id"]) == (body["run_id"], body["trace_correlation_id"])


def test_inference_url_that_is_not_a_string_is_rejected(running: RunningServer) -> None:
    urls = (5, True, ["http://127.0.0.1:9/v1"], {"url": "http://127.0.0.1:9/v1"})
    programs: tuple[list[Any], ...] = ([], [{"tool": "add", "args": {"amount": 1}}])
    for url, policy, ops in itertools.product(urls, ("nobody", "random", None), programs):
        body = request_body() | {"policy": {"policy_name": policy, "config": {"inference_url": url}}, "ops": ops}
        found = refused_fields(running, json.dumps(body).encode())
        assert found == [(["body", "policy", "config", "inference_url"], "type_error")], (url, policy, ops)


class Forgetful(Service):
    """A service whose answers are not JSON."""

    async def rollout(self, request: RolloutRequest, **more: Any) -> Rollout:
        played = await super().rollout(request, **more)
        played.digest = object()  # type: ignore[assignment]
        return played


def test_unserializable_answer_returns_500(caplog: pytest.LogCaptureFixture) -> None:
    with opened(make=Forgetful) as odd:
        response = odd.client.post("/rollout", json=request_body())
    error = error_of(response)
    assert response.status_code == 500 and error["code"] == "internal_error"
    assert any(str(error["error_id"]) in record.getMessage() for record in caplog.records)
