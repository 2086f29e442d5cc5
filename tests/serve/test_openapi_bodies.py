"""The OpenAPI document and the server accept the same bodies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from taskapp_kit.asgi import create
from taskapp_kit.config import Settings
from taskapp_kit.errors import RequestError
from taskapp_kit.rollout.policy.options import chosen_name
from taskapp_kit.rollout.service import Service
from taskapp_kit.wire.inference_url import inference_url
from taskapp_kit.wire.rollout import RolloutRequest
from tests.serve.running_server import KEY, RunningServer, app, opened

pytestmark = pytest.mark.server

SETTINGS = Settings(environment_api_key=KEY, protocols=("all",))
BUILT = create(Service(app), SETTINGS)
DOCUMENT = BUILT.openapi()
REQUESTS: dict[str, type[BaseModel]] = {
    model.__name__: model for route in BUILT.routes if (model := getattr(route, "request_model", None)) is not None
}
BODIES = [(route.path, model.__name__) for route in BUILT.routes if (model := getattr(route, "request_model", None))]
NEED_A_SESSION = ("/openenv", "/nemo/{environment}/verify", "/nemo/{environment}/{tool}")
"""They reject a request without a session, whatever its body is."""
del REQUESTS["StepSession"]  # which members go together is checked after the model; the tests below send bodies
SPEC = Service(app).spec
SPLITS = [split for environment in SPEC.environments.values() for split in environment.split_names]
VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, False, 0, 1, -1, 2**40, 0.5, 5e-324, 1e-3, 86_400, 10**9, 2 * 10**9, "", "a", "1", "a\n", "x" * 600, "train", "counter",
     "rl", [], ["agent"], [{}], [None], {}, {"a": 1}, {"tool": "t"}, {"env": 0.5}, {"env": "0.5"}, {"env": 0}, {"env": 0, "event": 1}, {"policy": "noop"}, {"inference_url": "http://m"}, [{"tool": "t"}], ["x"] * 3]
)  # fmt: skip
"""Integers are written without a fraction: `1.0` is listed in docs/reference/contract.md as what the document cannot express."""


def nested(schema: dict[str, Any], depth: int = 2) -> st.SearchStrategy[Any]:
    """Bodies with the members that the schema names, and values that it may or may not allow."""
    schema = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    for inner in schema.get("anyOf", ()):
        if "$ref" in inner:
            return st.one_of(VALUES, nested(inner, depth))
    if "properties" not in schema or not depth:
        return VALUES
    members = {name: nested(inner, depth - 1) for name, inner in schema["properties"].items()}
    if schema.get("required"):
        required = {name: members.pop(name) for name in schema["required"]}
        return st.one_of(st.fixed_dictionaries(required, optional=members), st.fixed_dictionaries({}, optional=members))
    return st.fixed_dictionaries({}, optional=members)


def accepts(model: type[BaseModel], body: dict[str, Any]) -> bool:
    """Whether the model takes the body, and the names in it are some of the app's."""
    try:
        read = model.model_validate(body)
        if isinstance(read, RolloutRequest):
            environment = read.env.env_name or SPEC.default_environment.name
            url = inference_url(read.policy.config, read.inference_url)
            chosen_name(SPEC, environment, read.policy.config, read.policy.policy_name, url)
    except (ValidationError, RequestError):
        return False
    named = getattr(getattr(read, "env", None if model.__name__ == "CreateSession" else read), "env_name", None)
    split = getattr(read, "split", None)
    return named in (None, *SPEC.environments) and split in (None, *SPLITS)


def validator(name: str) -> jsonschema_rs.Draft202012Validator:
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    return jsonschema_rs.Draft202012Validator(schema)


@pytest.mark.ci(keep=8)
@pytest.mark.parametrize("name", REQUESTS)
def test_the_document_and_the_model_accept_the_same_bodies(name: str) -> None:
    documented, model = validator(name), REQUESTS[name]

    @given(nested({"$ref": f"#/components/schemas/{name}"}))
    @settings(max_examples=300, deadline=None, derandomize=True)
    def agree(body: Any) -> None:
        if isinstance(body, dict):
            assert documented.is_valid(body) == accepts(model, body)

    agree()


def media_types(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        if isinstance(part.get("content"), dict):
            yield from part["content"].values()
        for inner in part.values():
            yield from media_types(inner)


def test_the_document_is_openapi_3_1() -> None:
    assert DOCUMENT["openapi"].startswith("3.1.")
    for media_type in media_types(DOCUMENT["paths"]):
        assert set(media_type) <= {"schema", "example", "examples", "encoding"}
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema)


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    with opened(SETTINGS) as found:
        yield found


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"tool": None, "actions": None, "text": None},
        {"tool": "increment", "args": None, "actions": None, "text": None},
        {"tool": "increment", "text": "a"},
        {"text": "a", "args": {}},
        {"actions": [{"tool": "increment"}], "args": None},
        {"actions": []},
        {"tool": "increment", "timeout_s": 5e-324},
        {"tool": "increment", "timeout_s": "1"},
        {"tool": "increment", "timeout_s": True},
        {"tool": "increment", "timeout_s": 0.001},
    ],
    ids=str,
)
def test_step_is_invalid_exactly_where_the_schema_is(running: RunningServer, body: dict[str, Any]) -> None:
    session = running.client.post("/sessions", json={"env_name": "counter"}).json()["session_id"]
    running.client.post(f"/sessions/{session}/reset", json={"seed": 0})
    answer = running.client.post(f"/sessions/{session}/step", json=body)
    refused = answer.status_code == 422 and answer.json()["detail"]["error"]["code"] == "invalid_request"
    assert refused != validator("StepSession").is_valid(body)
    running.client.delete(f"/sessions/{session}")


@pytest.mark.parametrize("path", [path for path, _ in BODIES if not path.startswith(NEED_A_SESSION)])
def test_null_members_are_invalid_exactly_where_the_schema_is(running: RunningServer, path: str) -> None:
    name = dict(BODIES)[path]
    body = dict.fromkeys(DOCUMENT["components"]["schemas"][name]["properties"])
    session = running.client.post("/sessions", json={}).json()["session_id"]
    place = path.replace("{environment}", "counter").replace("{session_id}", session).replace("{tool}", "increment")
    answer = running.client.post(place, json=body)
    assert (answer.status_code in (400, 422)) != validator(name).is_valid(body), answer.text
    running.client.delete(f"/sessions/{session}")


@pytest.mark.parametrize("name", ["environment", "env_name", "split"])
def test_query_names_are_the_names_in_the_document(running: RunningServer, name: str) -> None:
    parameters = DOCUMENT["paths"]["/task_info"]["get"]["parameters"]
    (listed,) = [parameter["schema"]["enum"] for parameter in parameters if parameter["name"] == name]
    assert "train" in listed or list(SPEC.environments) == listed
    assert running.client.get("/task_info", params={name: "0" * 600}).status_code == 422
    assert running.client.get("/task_info", params={name: listed[0]}).status_code == 200


@pytest.mark.parametrize("seconds", [5e-324, 0.0009, 0, -1, 86_401, "1"])
def test_time_limit_below_a_millisecond_returns_422(running: RunningServer, seconds: object) -> None:
    body = {"run_id": "r", "env": {}, "policy": {"config": {"policy": "one"}}, "ops": [], "mode": "eval"}
    answer = running.client.post("/rollout", json={**body, "safety": {"max_time_s": seconds}})
    assert answer.status_code == 422
    assert not validator(RolloutRequest.__name__).is_valid({**body, "safety": {"max_time_s": seconds}})
