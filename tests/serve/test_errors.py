"""Every error has one shape and one status; causes stay in the log under an opaque id."""

from __future__ import annotations

import json
import logging
from typing import Any

import pydantic
import pytest
from starlette.exceptions import HTTPException

from taskapp_kit.errors import (
    Boundary,
    ConfigError,
    Failure,
    FieldProblem,
    KitError,
    RequestError,
    RolloutFailed,
    Saturated,
    StoreError,
    Unavailable,
)
from taskapp_kit.net.error_response import REFUSAL_STATUS, RequestRefused
from taskapp_kit.serve.errors import error_answer
from taskapp_kit.serve.route import invalid_request
from taskapp_kit.wire.rollout import RolloutRequest

SECRET = "sentinel-detail"


def told(error: BaseException) -> tuple[int, dict[str, Any], dict[str, str]]:
    answer = error_answer(error, where="/x")
    body = json.loads(answer.body)
    assert list(body) == ["detail"] and list(body["detail"]) == ["error"]
    headers = {name.decode(): value.decode() for name, value in answer.headers}
    return answer.status, body["detail"]["error"], headers


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (RequestError("wrong"), 422, "invalid_request"),
        (RequestError("wrong", code="seed_out_of_range"), 422, "seed_out_of_range"),
        (Unavailable("needs more"), 422, "unavailable"),
        (Saturated("full"), 503, "saturated"),
        (StoreError(SECRET), 500, "store_failed"),
        (ConfigError(SECRET), 500, "internal_error"),
        (KitError(SECRET), 500, "internal_error"),
        (ValueError(SECRET), 500, "internal_error"),
        (HTTPException(404), 404, "not_found"),
        (HTTPException(405, headers={"Allow": "POST"}), 405, "method_not_allowed"),
        (HTTPException(418, detail=SECRET), 418, "http_418"),
        *((RequestRefused(code, "no"), status, code) for code, status in REFUSAL_STATUS.items()),
    ],
)  # fmt: skip
def test_each_error_maps_to_its_status(error: BaseException, status: int, code: str) -> None:
    found, body, _ = told(error)
    assert (found, body["code"]) == (status, code)
    assert SECRET not in json.dumps(body)


@pytest.mark.parametrize(
    ("boundary", "status"),
    [("environment", 500), ("policy", 502), ("scoring", 500), ("timeout", 504), ("cancelled", 503)],
)
def test_each_boundary_maps_to_its_status(boundary: Boundary, status: int, caplog: pytest.LogCaptureFixture) -> None:
    error = RolloutFailed(Failure(boundary, "it_broke", "It broke.", "Mend it.", "abc123"), rollout_id="r-7")
    error.__cause__ = ValueError(SECRET)
    found, body, _ = told(error)
    assert found == status
    assert body == {
        "code": "it_broke", "message": "It broke.", "hint": "Mend it.",
        "rollout_id": "r-7", "boundary": boundary, "error_id": "abc123",
    }  # fmt: skip
    assert not caplog.records, "a rollout that is over has its line already, and its traceback where it broke"


def test_failure_without_a_rollout_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    _, body, _ = told(RolloutFailed(Failure("environment", "it_broke", "It broke.", error_id="abc123")))
    (record,) = caplog.records
    assert body["error_id"] == "abc123" and "error_id=abc123 boundary=environment" in record.getMessage()
    assert record.exc_info is None


def test_unexpected_exception_is_logged_with_an_opaque_id(caplog: pytest.LogCaptureFixture) -> None:
    status, body, _ = told(KeyError(SECRET))
    assert status == 500 and body["error_id"].startswith("err_") and body["error_id"] in body["hint"]
    (record,) = caplog.records
    assert record.levelno == logging.ERROR and body["error_id"] in record.getMessage() and record.exc_info
    assert told(KeyError(SECRET))[1]["error_id"] != body["error_id"]


def test_saturated_response_has_retry_after() -> None:
    assert told(Saturated("full", retry_after_seconds=7))[2]["retry-after"] == "7"


def test_method_not_allowed_names_the_allowed_methods() -> None:
    _, body, headers = told(HTTPException(405, headers={"Allow": "POST, GET"}))
    assert headers["allow"] == "GET, POST" and "GET, POST" in body["hint"]


def test_error_fields_are_named_and_limited() -> None:
    fields = tuple(FieldProblem(("body", "ops", n), "is wrong") for n in range(500))
    _, body, _ = told(RequestError("wrong", fields=fields))
    assert len(body["fields"]) == 50
    assert body["fields"][3] == {"loc": ["body", "ops", 3], "message": "is wrong", "type": "value_error"}


@pytest.mark.parametrize(
    ("body", "places"),
    [
        (
            {"run_id": SECRET * 100, "env": {"seed": SECRET, "config": [SECRET]}, "policy": SECRET, "ops": ["agent", 5, None],
             "mode": SECRET, "safety": {"max_ops": 0, "max_time_s": SECRET}, "record": {"trajectories": SECRET}},
            [("run_id",), ("env", "seed"), ("env", "config"), ("policy",), ("ops", 1), ("ops", 2), ("mode",),
             ("safety", "max_ops"), ("safety", "max_time_s"), ("record", "trajectories")],
        ),
        ({"run_id": "x"}, [("env",), ("policy",), ("ops",), ("mode",)]),
    ],
    ids=["wrong", "missing"],
)  # fmt: skip
def test_validation_error_names_each_field_once_without_the_input(body: dict[str, Any], places: list[Any]) -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        RolloutRequest.model_validate(body)
    found = invalid_request(caught.value, body).fields
    assert {problem.loc for problem in found} == {("body", *place) for place in places}
    assert len(found) == len(places) and SECRET not in str(found)
    assert not [
        problem.message
        for problem in found
        if not problem.message.startswith(("should be", "should have", "is missing"))
    ]
