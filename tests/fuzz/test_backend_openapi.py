"""schemathesis over the backend's wire, as docs/train/backend.md tells it: whatever is sent, the answer is one of those.

Quick by default; `make fuzz` (or FUZZ_CASES=10000) sends so many cases, drawn anew, and prints what was answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from taskapp_kit.jobs.server.app import create_backend
from taskapp_kit.jobs.server.inference import MODEL_ROUTES
from taskapp_kit.jobs.server.routes import FAMILIES
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from tests.fuzz.cases import CASES, HYPOTHESIS, KEY, QUICK, fits, share

pytestmark = pytest.mark.server

HEADERS = {"Authorization": f"Bearer {KEY}"}
ANSWERED: Counter[tuple[str, str, int]] = Counter()

# -- the document ----------------------------------------------------------------------------------------------------

TEXT, WHOLE = {"type": "string"}, {"type": "integer"}
NUMBER_OR_NULL = {"type": ["number", "null"]}
TEXT_OR_NULL = {"type": ["string", "null"]}


def an_object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


def listed(name: str, item: dict[str, Any], **more: Any) -> dict[str, Any]:
    return an_object({name: {"type": "array", "items": item}, **more})


MOMENT = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00$"}
JOB = an_object(
    {
        "job_id": {"type": "string", "pattern": "^rl_[0-9a-f]{16}$"}, "id": TEXT, "job_type": {"const": "rl"},
        "status": {"enum": ["queued", "running", "succeeded", "failed", "cancelled"]}, "model": TEXT_OR_NULL,
        "trainer_id": TEXT_OR_NULL, "engine": {"const": "rollouts"}, "updates_weights": {"const": False},
        "created_at": MOMENT, "updated_at": MOMENT, "final_reward": NUMBER_OR_NULL, "error": TEXT_OR_NULL,
        "progress": an_object({"completed": WHOLE, "total": WHOLE, "unit": {"const": "rollouts"}}),
        "metrics": {"type": "object", "additionalProperties": NUMBER_OR_NULL}, "results": {"type": "object"},
        "tags": {"type": "object", "maxProperties": 64, "additionalProperties": {"type": ["string", "number", "boolean"]}},
    }
)  # fmt: skip
EVENT = an_object(
    {"seq": {"type": "integer", "minimum": 1}, "type": TEXT, "message": TEXT, "data": {"type": "object"},
     "level": {"enum": ["info", "warning", "error"]}, "job_id": TEXT, "created_at": MOMENT,
     "superseded_by": {"type": ["integer", "null"]}}
)  # fmt: skip
POINT = an_object(
    {"name": TEXT, "value": {"type": "number"}, "step": {"type": "integer", "minimum": 1}, "epoch": WHOLE,
     "phase": {"enum": ["train", "eval"]}, "job_id": TEXT, "created_at": MOMENT}
)  # fmt: skip
FIELD = an_object({"loc": {"type": "array"}, "message": TEXT, "type": TEXT})
ERROR = an_object(
    {
        "detail": an_object(
            {
                "error": an_object(
                    {"code": TEXT, "message": TEXT, "hint": TEXT}, fields={"type": "array", "items": FIELD}
                )
            }
        )
    }
)
OPENAI_ERROR = an_object(
    {"error": an_object({"code": TEXT, "message": TEXT, "hint": TEXT, "type": TEXT, "param": {"type": "null"}})}
)
MESSAGES_ERROR = an_object(
    {"type": {"const": "error"}, "error": an_object({"code": TEXT, "message": TEXT, "hint": TEXT, "type": TEXT})}
)
TRAINER = an_object(
    {"trainer_id": TEXT, "name": TEXT, "training_start_url": TEXT, "engine": TEXT, "updates_weights": {"const": False}}
)
HEALTH = an_object(
    {"status": {"const": "ok"}, "healthy": {"const": True}},
    version=TEXT, engine=TEXT, updates_weights={"const": False}, env_keys={"type": "boolean"},
    jobs=an_object({"running": WHOLE, "queued": WHOLE}),
)  # fmt: skip
CHECKED = an_object({"ok": {"type": "boolean"}, "status": WHOLE})
RESULT = an_object(
    {"key": TEXT, "ok": {"type": "boolean"}, "found": TEXT, "do": TEXT}, health=CHECKED, task_info=CHECKED
)
VERIFIED = an_object(
    {"any_ok": {"type": "boolean"}, "endpoint_base_url": TEXT, "results": {"type": "array", "items": RESULT}}
)
STORED = an_object({"stored": {"const": True}, "id": TEXT, "name": TEXT, "updated_at": MOMENT})
PUBLIC = an_object({"public_key": {"type": "string", "minLength": 44}, "alg": {"const": "libsodium.sealedbox.v1"}})

LOOPBACK = {"type": "string", "pattern": r"^http://127\.0\.0\.1:(9|1)$"}
"""Nobody answers there; nothing else is called by what is drawn."""
SETTINGS = {"type": "object", "properties": {"batch_size": {"type": "integer"}, "group_size": {"type": "integer"}}}
CONFIG = {
    "type": "object",
    "properties": {name: {"type": "object"} for name in ("training", "rollout", "model", "env")},
}
ASKED = {"endpoint_base_url": LOOPBACK, "model": TEXT, "trainer_id": TEXT, "trainer": SETTINGS, "config": CONFIG}
SUBMISSION = {
    "anyOf": [
        {"type": "object", "properties": ASKED, "required": ["endpoint_base_url"]},
        {
            "type": "object",
            "required": ["data"],
            "properties": {
                "job_type": {"const": "rl"}, "tags": {"type": "object"}, "compute": {"type": "object"},
                "data": {"type": "object", "properties": {**ASKED, "base_model": TEXT}, "required": ["endpoint_base_url"]},
            },
        },
    ]
}  # fmt: skip
SEALED = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[A-Z_]{1,20}$"}, "ciphertext_b64": TEXT},
    "required": ["name", "ciphertext_b64"],
}
ADDRESS = {"type": "object", "properties": {"endpoint_base_url": LOOPBACK}, "required": ["endpoint_base_url"]}


def query(name: str, **schema: Any) -> dict[str, Any]:
    return {"in": "query", "name": name, "required": False, "schema": {"type": "integer", **schema}}


def operation(
    answers: dict[int, dict[str, Any] | None],
    *,
    body: dict[str, Any] | None = None,
    given: tuple[dict[str, Any], ...] = (),
    refusals: tuple[int, ...] = (401, 422),
) -> dict[str, Any]:
    """answers: status to schema, None for a stream."""
    told: dict[str, Any] = {
        str(status): {
            "description": "",
            "content": {"text/event-stream": {}} if schema is None else {"application/json": {"schema": schema}},
        }
        for status, schema in answers.items()
    }
    for status in refusals:
        told[str(status)] = {"description": "", "content": {"application/json": {"schema": ERROR}}}
    made: dict[str, Any] = {"responses": told, "parameters": list(given)}
    if body is not None:
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return made


JOB_ID = {"in": "path", "name": "job_id", "required": True, "schema": {"type": "string", "minLength": 1}}
LIMIT = query("limit", minimum=1, maximum=10**17)
SINCE = query("since_seq", minimum=-1, maximum=10**17)
OF_A_JOB = (401, 404, 405, 422)
IDEMPOTENCY = {
    "in": "header",
    "name": "Idempotency-Key",
    "required": False,
    "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
}


def paths() -> dict[str, Any]:
    made: dict[str, Any] = {
        "/": {"get": operation({200: an_object({"status": TEXT, "service": TEXT})}, refusals=())},
        "/health": {"get": operation({200: HEALTH}, refusals=())},
        "/api/health": {"get": operation({200: HEALTH}, refusals=())},
        "/api/rl/verify_task_app": {"post": operation({200: VERIFIED}, body=ADDRESS, refusals=(401, 413, 415, 422))},
        "/api/rl/services": {"get": operation({200: listed("services", TRAINER)})},
        "/api/rl/services/{trainer_id}": {
            "get": operation(
                {200: TRAINER},
                given=({"in": "path", "name": "trainer_id", "required": True, "schema": {"enum": ["rollouts", "x"]}},),
                refusals=(401, 404, 405),
            )
        },
        "/api/v1/crypto/public-key": {"get": operation({200: PUBLIC})},
        "/api/v1/env-keys": {"post": operation({200: STORED}, body=SEALED, refusals=(401, 413, 415, 422))},
        **{
            f"/api/inference/v1/{path}": {
                "post": operation(
                    {501: MESSAGES_ERROR if path == "messages" else OPENAI_ERROR},
                    body={"type": "object"},
                    refusals=(401,),
                )
            }
            for path in MODEL_ROUTES
        },
        "/api/inference/v1/models": {"get": operation({501: OPENAI_ERROR}, refusals=(401,))},
    }
    for family in FAMILIES:
        base, one = f"/api/{family}/jobs", f"/api/{family}/jobs/{{job_id}}"
        made[base] = {
            "get": operation(
                {200: listed("jobs", JOB, has_more={"type": "boolean"})},
                given=(LIMIT, {"in": "query", "name": "after", "schema": TEXT}, {"in": "query", "name": "model", "schema": TEXT},
                       {"in": "query", "name": "status", "schema": {"enum": ["queued", "running", "failed"]}}),
            ),
            "post": operation(
                {200: JOB, 201: JOB}, body=SUBMISSION, given=(IDEMPOTENCY,), refusals=(401, 409, 413, 415, 422, 503)
            ),
        }  # fmt: skip
        made[one] = {"get": operation({200: JOB}, given=(JOB_ID,), refusals=OF_A_JOB)}
        made[one + "/start"] = {"post": operation({200: JOB}, given=(JOB_ID,), refusals=OF_A_JOB)}
        made[one + "/cancel"] = {"post": operation({200: JOB}, given=(JOB_ID,), refusals=OF_A_JOB)}
        events = listed("events", EVENT, last_seq=WHOLE)
        made[one + "/events"] = {"get": operation({200: events}, given=(JOB_ID, SINCE, LIMIT), refusals=OF_A_JOB)}
        made[one + "/events/stream"] = {"get": operation({200: None}, given=(JOB_ID, SINCE), refusals=OF_A_JOB)}
        after = query("after_step", minimum=-1, maximum=10**17)
        points = listed("points", POINT)
        made[one + "/metrics"] = {"get": operation({200: points}, given=(JOB_ID, after, LIMIT), refusals=OF_A_JOB)}
        phases = listed("events", an_object({"phase": TEXT, "created_at": MOMENT, "job_id": TEXT}))
        made[one + "/timeline"] = {"get": operation({200: phases}, given=(JOB_ID,), refusals=OF_A_JOB)}
    return made


OPENAPI = {"openapi": "3.1.0", "info": {"title": "taskapp backend", "version": "1"}, "paths": paths()}


CONFIGURED = schemathesis.Config.from_dict(
    {
        "headers": HEADERS,
        "generation": {
            "max-examples": share(0.02, 4),
            "with-security-parameters": False,  # tests/jobs/server/test_hostile_requests.py attacks the key
            "deterministic": QUICK,
            "no-shrink": not QUICK,
        },
        "checks": {
            # a document cannot say which jobs there are, or which configs fit together
            "positive_data_acceptance": {"expected-statuses": ["2xx", "404", "405", "409", "422", "501", "503"]},
            # a body is optional where nothing in it is needed, and members that are not known are not looked at
            "negative_data_rejection": {"enabled": False},
            "unsupported_method": {"enabled": False},
            "ignored_auth": {"enabled": False},
            "missing_required_header": {"enabled": False},
        },
        "operations": [{"include-path-regex": "jobs$", "generation": {"max-examples": share(0.06, 4)}}],
    }
)
DOCUMENT = schemathesis.openapi.from_dict(OPENAPI, config=CONFIGURED)
OPERATIONS = {found.ok().label: found.ok() for found in DOCUMENT.get_all_operations()}

# -- the server ------------------------------------------------------------------------------------------------------


def task_app() -> Starlette:
    """Its rollouts go well, fail, or have no reward, in turn."""
    numbers = iter(range(10**9))

    async def health(_: Request) -> Response:
        return JSONResponse({"healthy": True})

    async def task_info(_: Request) -> Response:
        return JSONResponse({"inference": {"policies": ["random"]}, "taskset": {"seeds": {"train": [0, 99]}}})

    async def rollout(_: Request) -> Response:
        number = next(numbers)
        if number % 5 == 3:
            error = {"code": "environment_raised", "message": "It broke.", "boundary": "environment"}
            return JSONResponse({"detail": {"error": error}}, 500)
        return JSONResponse({"metrics": {"mean_return": 1.0}, "reward": None if number % 5 == 4 else number % 2})

    return Starlette(
        routes=[Route("/health", health), Route("/task_info", task_info), Route("/rollout", rollout, methods=["POST"])]
    )


@pytest.fixture(scope="module")
def app_url() -> Iterator[str]:
    with BackgroundServer(task_app()) as server:
        yield server.url


@pytest.fixture(scope="module")
def server() -> Iterator[BackgroundServer]:
    backend = create_backend([KEY], local=False, allow=("127.0.0.1",))
    with BackgroundServer(backend) as served:
        yield served
    if not QUICK:
        for (label, test, status), number in sorted(ANSWERED.items()):
            print(f"{number:7} {status} {label} ({test})")
        print(f"{ANSWERED.total():7} in all")


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as made:
        made.trust_env = False
        yield made


@pytest.fixture(scope="module")
def known(server: BackgroundServer, app_url: str, session: requests.Session) -> list[str]:
    """Jobs that are over: one that went well, one that failed, one that was cancelled."""
    ids = []
    for url, settings in ((app_url, {"batch_size": 9}), ("http://127.0.0.1:9", {}), (app_url, {"batch_size": 10_000})):
        body = {"model": "m", "endpoint_base_url": url, "trainer": settings}
        answer = session.post(f"{server.url}/api/rl/jobs", json=body, headers=HEADERS, timeout=20)
        assert answer.status_code == 201, answer.text
        ids.append(answer.json()["job_id"])
    assert session.post(f"{server.url}/api/rl/jobs/{ids[2]}/cancel", headers=HEADERS, timeout=60).status_code == 200
    for job_id in ids:
        with session.get(f"{server.url}/api/rl/jobs/{job_id}/events/stream", headers=HEADERS, timeout=60) as stream:
            assert stream.status_code == 200  # it is read to its end, which is the job's
    return ids


def check(case: schemathesis.Case, server: BackgroundServer, session: requests.Session, test: str) -> None:
    assume(fits(case, server.url))
    response = case.call(server.url, session, HEADERS, timeout=60)
    ANSWERED[case.operation.label, test, response.status_code] += 1
    told = {501: "no_models", 503: "saturated"}.get(response.status_code)
    if response.status_code >= 500:
        body = response.json()
        assert body.get("detail", body)["error"]["code"] == told, case.as_curl_command()
    case.validate_response(
        response,
        headers=HEADERS,
        excluded_checks=[not_a_server_error],  # see the line above
        transport_kwargs={"base_url": server.url},
    )


def test_the_document_has_every_route() -> None:
    routes = {
        (path, method.lower())
        for route in create_backend([KEY]).routes
        if isinstance(route, Route)
        for path in (route.path,)
        for method in route.methods or ()
        if method != "HEAD"
    }
    assert routes == {(path, method) for path, item in OPENAPI["paths"].items() for method in item}  # type: ignore[attr-defined]


@DOCUMENT.parametrize()
def test_an_answer_is_as_documented(
    case: schemathesis.Case, server: BackgroundServer, session: requests.Session
) -> None:
    check(case, server, session, "drawn")


@pytest.mark.parametrize("label", [label for label in OPERATIONS if "{job_id}" in label])
def test_what_is_there_is_answered_as_documented(
    label: str, server: BackgroundServer, session: requests.Session, known: list[str]
) -> None:
    @given(OPERATIONS[label].as_strategy(), st.sampled_from(known))
    @hypothesis_settings(max_examples=share(0.02, 4), **HYPOTHESIS)
    def answered(case: schemathesis.Case, job_id: str) -> None:
        case.path_parameters = {"job_id": job_id}
        check(case, server, session, "known")

    answered()
    assert ANSWERED[label, "known", 200]


def test_jobs_that_are_played_are_answered_as_documented(
    server: BackgroundServer, session: requests.Session, app_url: str
) -> None:
    label = "POST /api/rl/jobs"

    @given(
        OPERATIONS[label].as_strategy(),
        st.fixed_dictionaries({"batch_size": st.integers(1, 4), "group_size": st.integers(1, 3)}),
        st.sampled_from([None, "k1", "k2"]),
    )
    @hypothesis_settings(max_examples=share(0.1, 4), **HYPOTHESIS)
    def answered(case: schemathesis.Case, trainer: dict[str, int], key: str | None) -> None:
        case.body = {"model": "m", "endpoint_base_url": app_url, "trainer": trainer}
        case.headers = {**(case.headers or {}), **({"Idempotency-Key": key} if key else {})}
        check(case, server, session, "played")

    answered()
    assert ANSWERED[label, "played", 201]


def test_so_many_cases_were_sent() -> None:  # after those above
    assert ANSWERED.total() >= CASES * 0.5
    assert {operation for operation, _, _ in ANSWERED} == set(OPERATIONS)
