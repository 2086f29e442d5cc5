"""schemathesis over our own OpenAPI document: whatever is sent, the answer is one that the document announces.

Quick by default; `make fuzz` (or FUZZ_CASES=10000) sends so many cases, drawn anew, and prints what was answered.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import pytest
import requests
import schemathesis
from fastapi import FastAPI
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from schemathesis.checks import CheckFunction, not_a_server_error
from schemathesis.specs.openapi.checks import negative_data_rejection

from taskapp_kit.asgi import create
from taskapp_kit.config import Settings
from taskapp_kit.records.protocols import Store
from taskapp_kit.rollout.service import Service, ServiceSettings
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from taskapp_kit.store import open_store
from tests.fuzz.cases import CASES, HYPOTHESIS, KEY, QUICK, fits, share
from tests.fuzz.sound_app import Board, app
from tests.serve.running_server import request_body

pytestmark = pytest.mark.server

HEADERS = {"X-API-Key": KEY}
SHORT_DEADLINE_SECONDS = 5.0
"""A request that gives itself less than this may be answered 504; no other answer of 5xx is right."""


def served(store: Store | None = None) -> FastAPI:
    """The front entrance before the sound app."""
    settings = ServiceSettings(max_concurrent=64 + 2 * CASES)  # sessions are opened, and most are not closed
    return create(Service(app, settings, store=store), Settings(environment_api_key=KEY, protocols=("all",)))


CONFIG = schemathesis.Config.from_dict(
    {
        "headers": HEADERS,
        # tests/serve/test_auth.py attacks the key; schemathesis itself only tries each answer again without one
        "generation": {
            "max-examples": share(0.04),
            "with-security-parameters": False,
            "allow-extra-parameters": False,  # a header that no route names is ignored, as HTTP asks
            "deterministic": QUICK,
            "no-shrink": not QUICK,
        },
        # a document cannot say which names, seeds and policies an app has: well-formed requests may be refused
        "checks": {
            "positive_data_acceptance": {"expected-statuses": ["2xx", "400", "404", "405", "409", "422", "5xx"]}
        },
        "operations": [{"include-path": "/rollout", "generation": {"max-examples": share(0.3)}}],
    }
)
OPENAPI = served().openapi()
DOCUMENT = schemathesis.openapi.from_dict(OPENAPI, config=CONFIG)
OPERATIONS = {found.ok().label: found.ok() for found in DOCUMENT.get_all_operations()}
ANSWERED: Counter[tuple[str, str, int]] = Counter()
"""How many answers: operation, which test, status."""


@pytest.fixture(scope="module")
def server() -> Iterator[BackgroundServer]:
    with BackgroundServer(served(open_store("memory"))) as running:
        yield running
    if not QUICK:
        lines = [f"{operation:32}{test:12}{status}{count:8}" for (operation, test, status), count in ANSWERED.items()]
        print("", *sorted(lines), f"{ANSWERED.total()} cases", sep="\n")


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as opened:
        opened.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))  # a case has the cookies that were drawn
        yield opened


@pytest.fixture(scope="module")
def known(server: BackgroundServer, session: requests.Session) -> dict[str, list[Any]]:
    """Values of parameters that name something that is there."""
    ids = []
    looks = [{"type": "env", "tool": "look", "args": {"closely": closely}} for closely in (False, True)]
    for environment, ops in [("counter", []), ("board", looks), ("quiz", [])]:
        config = {"policy": "constant", "action": "four"} if environment == "quiz" else {"policy": "noop"}
        body = request_body(environment, seed=0, ops=ops) | {"policy": {"config": config}}
        headers = {**HEADERS, "Idempotency-Key": f"known-{environment}"}  # so that it is found under its id
        answer = session.post(f"{server.url}/rollout", json=body, headers=headers, timeout=20)
        assert answer.status_code == 200, answer.text
        ids.append(answer.json()["rollout_id"])
    shown = [Board().look(closely)[1] for closely in (False, True)]
    return {"rollout_id": ids, "sha256": [picture.hash for picture in shown], **NAMES}


FRESH = "fresh"
FRESH_KEYS = (f"fresh-{number}" for number in itertools.count())
NAMES: dict[str, list[Any]] = {
    "environment": ["counter", "board", "quiz"],
    "env_name": ["counter", "board", "quiz"],
    "split": ["train", "test"],
    "seed": [[0], [4], [64], [0, 8]],
    "seeds": [[0], [1], [4, 8, 12]],
    "Prefer": ["respond-async", "respond-async, wait=1", "return=minimal"],
    "Idempotency-Key": [FRESH, FRESH, FRESH, "used-before"],
    "Last-Event-ID": ["0", "3", "99"],
}


def sent(
    case: schemathesis.Case, server: BackgroundServer, session: requests.Session, headers: dict[str, str] = HEADERS
) -> schemathesis.Response:
    """The answer to a case that was drawn."""
    assume(fits(case, server.url))
    return case.call(server.url, session, headers)


def check(case: schemathesis.Case, response: schemathesis.Response, server: BackgroundServer, test: str) -> None:
    """No 5xx, and status, media type, headers and body are as documented."""
    ANSWERED[case.operation.label, test, response.status_code] += 1
    if case.method == case.operation.method.upper():
        told = set(response.headers) - PLAIN_HEADERS
        assert told <= documented_headers(case.operation.label, response.status_code), case.as_curl_command()
    excluded: list[CheckFunction] = []
    if response.status_code == 504 and gave_itself_little_time(case):
        excluded.append(not_a_server_error)
    if case.operation.label in OF_A_PROTOCOL and test == "played":  # what was wrong with it may have been replaced
        excluded.append(negative_data_rejection)
    case.validate_response(
        response, headers=HEADERS, excluded_checks=excluded, transport_kwargs={"base_url": server.url}
    )


PLAIN_HEADERS = {
    *("date", "content-type", "content-length", "transfer-encoding", "connection", "cache-control"),
    *("x-content-type-options", "content-security-policy", "x-accel-buffering"),
}
"""What any answer may carry."""


def documented_headers(label: str, status: int) -> set[str]:
    method, path = label.split(" ")
    answers = OPENAPI["paths"][path][method.lower()]["responses"]
    return {name.lower() for name in answers.get(str(status), {}).get("headers", {})}


def gave_itself_little_time(case: schemathesis.Case) -> bool:
    safety = case.body.get("safety") if isinstance(case.body, dict) else None
    return isinstance(safety, dict) and 0 < safety.get("max_time_s", 3600) < SHORT_DEADLINE_SECONDS


@DOCUMENT.parametrize()
def test_an_answer_is_as_documented(
    case: schemathesis.Case, server: BackgroundServer, session: requests.Session
) -> None:
    check(case, sent(case, server, session), server, "drawn")


CONTAINERS = {"path": "path_parameters", "query": "query", "header": "headers"}
PARAMETERS = {
    f"{method.upper()} {path}": [
        (CONTAINERS[parameter["in"]], parameter["name"])
        for parameter in operation.get("parameters", [])
        if parameter["name"] in (*NAMES, "rollout_id", "sha256")
    ]
    for path, operations in OPENAPI["paths"].items()
    for method, operation in operations.items()
}
"""Of each operation: where its parameters that name something stand."""


ACCEPTED = st.sampled_from(
    ["*/*", "application/json", "text/event-stream", "text/plain", "application/openmetrics-text; version=1.0.0"]
)
"""What any operation is asked for in `Accept`, whether or not it announces that."""


OF_A_SESSION = [label for label in OPERATIONS if "{session_id}" in label]
SESSION_NAMES = {"X-Session-ID": "headers", "taskapp_session": "cookies"}
OF_A_PROTOCOL = {
    f"{method.upper()} {path}": parameter["name"]
    for path, operations in OPENAPI["paths"].items()
    for method, operation in operations.items()
    for parameter in operation.get("parameters", [])
    if parameter["name"] in SESSION_NAMES
}
"""Operations of the protocols of others that name a session, and where: in a header or a cookie."""
WELL_FORMED: dict[str, dict[str, Any]] = {
    "/openenv/{environment}/step": {"action": {"by": 1}},
    "/ors/{environment}/create": {"split": "train", "index": 0},
    "/ors/{environment}/call": {"name": "increment", "input": {"by": 1}},
    "/nemo/{environment}/{tool}": {"by": 1},
}
WITHOUT_GROUP_JUDGE = "POST /ors/{environment}/score_group"


@pytest.mark.parametrize(
    "label",
    [
        label
        for label in OPERATIONS
        if label not in ("POST /rollout", "POST /score_group") and label not in (*OF_A_SESSION, *OF_A_PROTOCOL)
    ],
)
def test_what_is_there_is_answered_as_documented(
    label: str, server: BackgroundServer, session: requests.Session, known: dict[str, list[Any]]
) -> None:
    @given(OPERATIONS[label].as_strategy(), st.data())
    @hypothesis_settings(max_examples=share(0.04), **HYPOTHESIS)
    def answered(case: schemathesis.Case, data: st.DataObject) -> None:
        name_what_is_there(case, label, data, known)
        headers = {**HEADERS, "Accept": data.draw(ACCEPTED)}
        check(case, sent(case, server, session, headers), server, "named")

    answered()
    assert any(ANSWERED[label, "named", status] for status in (200, 202, 204))


def name_what_is_there(case: schemathesis.Case, label: str, data: st.DataObject, known: dict[str, list[Any]]) -> None:
    """Puts names that are known in the place of some parameters, drops others."""
    for container, name in PARAMETERS[label]:
        values = dict(getattr(case, container) or {})
        choice = data.draw(st.sampled_from(["known", "known", "absent", "absent", "absent", "drawn"]))
        if choice == "known" or container == "path_parameters":
            drawn = data.draw(st.sampled_from(known[name]))
            values[name] = next(FRESH_KEYS) if drawn == FRESH else drawn
        elif choice == "absent":
            values.pop(name, None)
        setattr(case, container, values)
    if "{environment}" in label and isinstance(case.body, dict):  # the tasks of a split
        there = {"split": data.draw(st.sampled_from(["train", "train", "no"])), "index": data.draw(st.integers(-1, 10))}
        case.body = {**case.body, **{name: value for name, value in there.items() if name in case.body}}


BODIES: dict[str, st.SearchStrategy[Any]] = {
    "env": st.fixed_dictionaries(
        {
            "env_name": st.sampled_from(["counter", "board", "quiz", None]),
            "seed": st.sampled_from([0, 0, 4, None, 64]),
            "config": st.sampled_from(
                [{}, {}, {"low": 1, "high": 2}, {"split": "test"}, {"low": -1}, {"step_rewards": {"enabled": True}}]
            ),
        }
    ),
    "policy": st.fixed_dictionaries(
        {
            "policy_name": st.sampled_from([None, "mine"]),
            "config": st.sampled_from(
                [
                    {"policy": "random"},
                    {"policy": "random", "sample": 3, "temperature": 0.5, "model": "m"},
                    {"policy": "noop"},
                    {"policy": "one"},
                    {"policy": "constant", "action": "Sechs"},
                    {"policy": "constant", "action": {"write": {"row": 1, "word": "é"}}},
                    {"policy": "random", "inference_url": "https://10.0.0.1/v1?cid=trace_1"},
                ]
            ),
            "output_mode": st.sampled_from(["tool_calls", "text"]),
        }
    ),
    "ops": st.sampled_from(
        [
            [],
            ["agent", "env"] * 3,
            [{"type": "agent"}, {"type": "env"}],
            [{"type": "env", "tool": "increment", "args": {"by": 2}}, "agent"],
            [{"type": "env", "tool": "look", "args": {"closely": 1}}] * 2,
        ]
    ),
    "safety": st.sampled_from(
        [{}, {}, {"max_ops": 2}, {"max_ops": 1, "max_time_s": 60}, {"max_time_s": 0.5}, {"max_time_s": 0.001}]
    ),
    "reward": st.sampled_from(
        [None, None, {"env": 1}, {"env": 0.5, "outcome": 2.0}, {"env": 1e308, "event": 1e308, "outcome": 1e308}]
    ),
    "inference_url": st.sampled_from([None, "https://10.0.0.1/v1/chat/completions?cid=trace_1"]),
    "record": st.fixed_dictionaries({}, optional={"return_trace": st.booleans(), "trajectories": st.booleans()}),
}


def test_rollouts_that_are_played_answer_as_documented(
    server: BackgroundServer, session: requests.Session, known: dict[str, list[Any]]
) -> None:
    label = "POST /rollout"

    @given(OPERATIONS[label].as_strategy(), st.fixed_dictionaries(BODIES), st.data())
    @hypothesis_settings(max_examples=share(0.45), **HYPOTHESIS)
    def answered(case: schemathesis.Case, parts: dict[str, Any], data: st.DataObject) -> None:
        assume(isinstance(case.body, dict))
        kept = data.draw(st.sampled_from([None, None, None, *BODIES]))  # one part may stay as schemathesis drew it
        parts.pop(kept, None)
        case.body = {**case.body, **parts}
        name_what_is_there(case, label, data, known)
        headers = {**HEADERS, "Accept": data.draw(ACCEPTED)}
        check(case, sent(case, server, session, headers), server, "played")
        if "Idempotency-Key" in (case.headers or {}):
            check(case, sent(case, server, session, headers), server, "replayed")

    answered()
    played = sum(ANSWERED[label, "played", status] for status in (200, 202))
    assert played > share(0.45) / 4, ANSWERED


@pytest.mark.parametrize("label", OF_A_SESSION)
def test_calls_of_a_session_answer_as_documented(
    label: str, server: BackgroundServer, session: requests.Session
) -> None:
    def ask(path: str, body: Any) -> Any:
        return session.post(f"{server.url}{path}", json=body, headers=HEADERS, timeout=20).json()

    @given(OPERATIONS[label].as_strategy(), st.sampled_from(["counter", "board", "quiz"]), st.booleans(), st.booleans())
    @hypothesis_settings(max_examples=share(0.04), **HYPOTHESIS)
    def answered(case: schemathesis.Case, environment: str, begun: bool, empty: bool) -> None:
        session_id = ask("/sessions", {"env_name": environment})["session_id"]
        if begun:
            ask(f"/sessions/{session_id}/reset", {"seed": 0})
        case.path_parameters = {"session_id": session_id}
        if empty and case.body:
            case.body = {"text": "Sechs"} if label.endswith("step") else {}
        check(case, sent(case, server, session), server, "played")
        session.delete(f"{server.url}/sessions/{session_id}", headers=HEADERS, timeout=20)

    answered()
    assert ANSWERED[label, "played", 200], ANSWERED


@pytest.mark.parametrize("label", OF_A_PROTOCOL)
def test_calls_of_a_protocols_session_answer_as_documented(
    label: str, server: BackgroundServer, session: requests.Session
) -> None:
    path, member = label.partition(" ")[2], OF_A_PROTOCOL[label]

    def ask(path: str, body: Any, **headers: str) -> requests.Response:
        answer = session.post(f"{server.url}{path}", json=body, headers={**HEADERS, **headers}, timeout=20)
        assert answer.status_code == 200, answer.text
        return answer

    def opened() -> str:
        if path.startswith("/openenv/"):
            return ask("/openenv/counter/reset", {"seed": 0}).headers[member]
        if path.startswith("/nemo/"):
            return str(ask("/nemo/counter/seed_session", {"seed": 0}).cookies[member])
        name = next(FRESH_KEYS)
        if not path.endswith("/create"):
            ask("/ors/counter/create", {"split": "train", "index": 0}, **{member: name})
        return name

    @given(OPERATIONS[label].as_strategy(), st.booleans())
    @hypothesis_settings(max_examples=share(0.04), **HYPOTHESIS)
    def answered(case: schemathesis.Case, well_formed: bool) -> None:
        case.path_parameters = {"environment": "counter", "tool": "increment"}
        case.query = {}
        setattr(case, SESSION_NAMES[member], {member: opened()})
        if well_formed and case.operation.body:
            case.body = WELL_FORMED.get(path, {})
        check(case, sent(case, server, session), server, "played")

    answered()
    assert ANSWERED[label, "played", 404 if label == WITHOUT_GROUP_JUDGE else 200], ANSWERED


def test_so_many_cases_were_sent() -> None:  # after those above
    assert ANSWERED.total() >= CASES
    assert {operation for operation, _, _ in ANSWERED} == set(OPERATIONS)
