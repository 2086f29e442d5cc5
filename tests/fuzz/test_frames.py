"""Drawn frames and JSON-RPC requests, which no OpenAPI document describes: each is answered in its protocol's words.

FUZZ_CASES=10000 draws more of them, anew. The app is sound, so that an answer that is a failure of the server or of the environment is a fault of ours.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from taskapp_kit.asgi import create
from taskapp_kit.config import Settings
from taskapp_kit.rollout.service import Service, ServiceSettings
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from tests.fuzz.cases import CASES, KEY, QUICK
from tests.fuzz.sound_app import app

pytestmark = pytest.mark.server

HEADERS = {"X-API-Key": KEY}
OURS = settings(
    deadline=None,
    derandomize=QUICK,
    max_examples=max(60, CASES // 4),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
KINDS = ["reset", "step", "finish", "state", "mcp"]
METHODS = "tools/list tools/call openenv/session/create openenv/session/close initialize ping notifications/initialized"
WORDS = [*KINDS, *METHODS.split(), "resources/list", "resources/read", "prompts/list"]
MEMBERS = "type id data request_id tool args seed split index config episode_id timeout_s by uri protocolVersion"
NAMES = [*MEMBERS.split(), "jsonrpc", "method", "params", "name", "arguments", "session_id", "tool_name"]
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0, -1, 2**63, 1e308])
SCALARS = (
    st.none() | st.booleans() | NUMBERS | st.text(max_size=10) | st.sampled_from([*WORDS, "increment", "train", ""])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=6,
)
RAW = st.text(max_size=20) | st.sampled_from(
    ['"\\ud800"', '{"type": "\\ud800"}', "[" * 5000, "{}", "null", "NaN", "\x00"]
)
ARGUMENTS = (
    st.sampled_from([{}, {"by": 1}, {"by": "x"}, {"seed": 1}, {"tool": "increment", "args": {"by": 1}}]) | VALUES
)


def frames(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[str | bytes]:
    """A frame with some of these members, or with any; some are text that is no JSON, or bytes."""
    whole, partly = st.fixed_dictionaries(members), st.fixed_dictionaries({}, optional=members)
    return st.one_of(whole.map(json.dumps), partly.map(json.dumps), VALUES.map(json.dumps), RAW, st.binary(max_size=8))


CALLS = frames(type=st.sampled_from(KINDS), data=ARGUMENTS, id=SCALARS)
MESSAGES = frames(
    type=st.sampled_from([*KINDS, "close"]), data=ARGUMENTS, request_id=st.sampled_from(["a", "b", "", 1])
)
REQUESTS = frames(
    jsonrpc=st.just("2.0"),
    id=SCALARS,
    method=st.sampled_from(WORDS),
    params=st.fixed_dictionaries({}, optional={"name": st.just("increment"), "arguments": ARGUMENTS}) | VALUES,
)
SESSION_STATUSES = {404, 409, 413, 422, 429}
OPENENV_CODES = {"INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR", "SESSION_ERROR"}
NO_EPISODE = {"no_episode", "episode_over"}
"""What OpenEnv's code of a failed episode is also for."""
RPC_CODES = {-32700, -32600, -32601, -32602}


@pytest.fixture(scope="module")
def server() -> Iterator[BackgroundServer]:
    service = Service(app, ServiceSettings(max_concurrent=1000))
    with BackgroundServer(create(service, Settings(environment_api_key=KEY, protocols=("all",)))) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: BackgroundServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers=HEADERS, timeout=30) as opened:
        yield opened


@pytest.fixture(autouse=True)
def no_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


class Wire:
    """A socket that is opened again when a frame closed it."""

    def __init__(self, server: BackgroundServer, path: str) -> None:
        self._url = server.url.replace("http", "ws") + path
        self._stack = ExitStack()
        self._socket: ClientConnection | None = None
        self.kinds: set[str] = set()

    def ask(self, frame: str | bytes) -> Any:
        """The answer; None where the socket was closed in answer."""
        if self._socket is None:
            self._stack.close()
            self._socket = self._stack.enter_context(connect(self._url, additional_headers=HEADERS, max_size=None))
        try:
            self._socket.send(frame)
            answer = json.loads(self._socket.recv(30))
        except ConnectionClosed as closed:
            self._socket = None
            assert closed.rcvd is not None and closed.rcvd.code in (1000, 1008), closed
            return None
        self.kinds.add(answer.get("type") or ("result" if "result" in answer else "error"))
        return answer

    def close(self) -> None:
        self._stack.close()


def opened(client: httpx.Client) -> str:
    return str(client.post("/sessions", json={"env_name": "counter"}).raise_for_status().json()["session_id"])


def test_frames_of_a_session(server: BackgroundServer, client: httpx.Client) -> None:
    session_id = opened(client)
    wire = Wire(server, f"/sessions/{session_id}/socket")

    @given(CALLS)
    @OURS
    def answered(frame: str | bytes) -> None:
        answer = wire.ask(frame)
        if answer is not None and answer["type"] == "error":
            assert answer["status"] in SESSION_STATUSES and answer["error"]["message"], answer
        else:
            assert answer is None or answer.keys() == {"type", "id", "data"}, answer

    answered()
    wire.close()
    assert {"error", "reset", "state"} <= wire.kinds


def test_frames_of_openenv(server: BackgroundServer) -> None:
    wire = Wire(server, "/openenv/counter/ws")

    @given(MESSAGES)
    @OURS
    def answered(frame: str | bytes) -> None:
        answer = wire.ask(frame)
        if answer is not None and answer["type"] == "error":
            data = answer["data"]
            assert data["code"] in OPENENV_CODES or data["error"]["code"] in NO_EPISODE, answer
        else:
            assert answer is None or answer["type"] in ("observation", "state", "mcp"), answer

    answered()
    wire.close()
    assert {"error", "observation", "state"} <= wire.kinds


@pytest.mark.parametrize("path", ["/openenv/counter/mcp", "/mcp/counter"])
def test_requests_of_openenvs_dialect(path: str, server: BackgroundServer, client: httpx.Client) -> None:
    wire = Wire(server, path)

    def check(answer: Any) -> None:
        assert answer["jsonrpc"] == "2.0" and ("result" in answer) != ("error" in answer), answer
        if "error" in answer:
            error = answer["error"]
            assert error["code"] in RPC_CODES or error.get("data", {}).get("code") in NO_EPISODE, answer

    @given(REQUESTS)
    @OURS
    def answered(frame: str | bytes) -> None:
        answer = wire.ask(frame)
        if answer is not None:
            check(answer)
        response = client.post(path, content=frame, headers={"Content-Type": "application/json"})
        assert response.status_code == 200, response.text
        check(response.json())

    answered()
    wire.close()
    assert {"error", "result"} <= wire.kinds


def test_requests_of_mcp(client: httpx.Client) -> None:
    headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    initialize = {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
    }
    begun = client.post("/mcp/counter?seed=0", json=initialize, headers=headers).raise_for_status()
    session = {**headers, "Mcp-Session-Id": begun.headers["mcp-session-id"]}
    client.post("/mcp/counter", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=session)
    results = 0

    @given(REQUESTS, st.booleans())
    @OURS
    def answered(frame: str | bytes, within: bool) -> None:
        nonlocal results
        response = client.post("/mcp/counter", content=frame, headers=session if within else headers)
        assert response.status_code in (200, 202, 400, 404, 422), (response.status_code, response.text)
        if response.status_code == 200:
            answer = response.json()
            assert answer["jsonrpc"] == "2.0" and ("result" in answer) != ("error" in answer), answer
            results += within and "result" in answer

    answered()
    assert results, "some were calls that are answered"
