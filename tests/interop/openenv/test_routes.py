"""OpenEnv's protocol on a real server, frame by frame. tests/interop/test_matrix.py runs its own clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

from taskapp_kit.config import Settings
from taskapp_kit.serve import key_file
from taskapp_kit.store import open_store
from tests.interop.shared.protocol_clients import socket_to
from tests.serve.running_server import KEY, RunningServer, error_of, opened
from tests.waiting import until

pytestmark = pytest.mark.server

SETTINGS = Settings(environment_api_key=KEY, protocols=("openenv",))


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with opened(SETTINGS, store=open_store(str(tmp_path_factory.mktemp("openenv") / "s.db"))) as running:
        yield running


def socket(running: RunningServer, path: str = "/openenv/counter/ws", key: str | None = KEY) -> ClientConnection:
    return socket_to(running, path, key)


def ask(wire: ClientConnection, kind: str, data: Any = None, **more: Any) -> Any:
    wire.send(json.dumps({"type": kind, **({} if data is None else {"data": data}), **more}))
    return json.loads(wire.recv(20))


def data_of(answer: Any, kind: str = "observation") -> Any:
    assert answer["type"] == kind, answer
    return answer["data"]


def test_two_episodes_on_one_socket(yard: RunningServer) -> None:
    with socket(yard, "/openenv/ws") as wire:  # the default environment
        first = data_of(ask(wire, "reset", {"seed": 1, "episode_id": "mine", "low": 2, "high": 2, "prompt": "x"}))
        assert first["metadata"]["ignored"] == ["prompt"] and first["observation"]["text"] == "target 2"
        state = data_of(ask(wire, "state"), "state")
        assert (state["episode_id"], state["step_count"], state["status"]) == ("mine", 0, "playing")
        assert data_of(ask(wire, "step", {"by": 1, "metadata": {"mine": 1}}))["done"] is False
        again = data_of(ask(wire, "reset", {"seed": 1}))
        assert again["metadata"]["rollout_id"] != first["metadata"]["rollout_id"]
        assert data_of(ask(wire, "state"), "state")["step_count"] == 0
        end = data_of(ask(wire, "finish"))
        assert end["done"] and end["metadata"]["truncated"] and end["reward"] == 0.0
        assert end["observation"]["metadata"] == end["metadata"]
        over = data_of(ask(wire, "step", {"by": 1}), "error")
        assert (over["code"], over["error"]["code"]) == ("EXECUTION_ERROR", "episode_over")
        wire.send('{"type": "close"}')
        with pytest.raises(ConnectionClosed) as closed:
            wire.recv(20)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1000
    until(lambda: len(yard.service.sessions) == 0, 20, "the session ends with its socket")


@pytest.mark.parametrize(
    "frame,code",
    [
        ("{", "INVALID_JSON"),
        ("[]", "INVALID_JSON"),
        ('{"type": "reset", "type": "step"}', "INVALID_JSON"),
        ('{"type": "jump"}', "UNKNOWN_TYPE"),
        ("{}", "UNKNOWN_TYPE"),
        ('{"type": "reset", "x": 1}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": 1}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": -1}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": "1"}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"episode_id": 1}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"low": "x"}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"bye": 1}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"by": 1}, "request_id": ""}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"by": 1}}', "EXECUTION_ERROR"),
    ],
)
def test_invalid_frame_is_an_error_and_the_socket_stays_open(yard: RunningServer, frame: str, code: str) -> None:
    with socket(yard) as wire:
        wire.send(frame)
        answer = data_of(json.loads(wire.recv(20)), "error")
        assert answer["code"] == code and answer["message"]
        if code == "VALIDATION_ERROR":
            assert isinstance(answer["errors"], list)
        assert data_of(ask(wire, "reset", {"seed": 0}))["done"] is False


def test_refused_action_is_a_step_and_too_many_end_the_episode(yard: RunningServer) -> None:
    with socket(yard) as wire:
        data_of(ask(wire, "reset", {"seed": 0}))
        refused = data_of(ask(wire, "step", {"by": "one"}))
        assert refused["metadata"]["refused"] and refused["reward"] == 0.0 and not refused["done"]
        for _ in range(20):
            refused = data_of(ask(wire, "step", {"by": "one"}))
            if refused["done"]:
                break
        assert refused["done"] and refused["metadata"]["episode"]["stop_reason"]


@pytest.mark.parametrize(
    "environment,seed,action,boundary",
    [("broken", 0, None, "environment"), ("broken", 1, {}, "environment"), ("pictures", 0, {}, "scoring")],
)
def test_failure_is_an_error_without_a_reward(
    yard: RunningServer, environment: str, seed: int, action: Any, boundary: str
) -> None:
    with socket(yard, f"/openenv/{environment}/ws") as wire:
        answer = ask(wire, "reset", {"seed": seed})
        if action is not None:
            assert data_of(answer)["observation"]
            answer = ask(wire, "step", action)
        failed = data_of(answer, "error")
        assert failed["code"] == "EXECUTION_ERROR" and failed["error"]["boundary"] == boundary
        assert boundary in failed["message"] and "sentinel" not in json.dumps(failed)
        assert failed["error"]["rollout_id"] and failed["error"]["error_id"]
        if action is not None:  # until the next reset
            again = data_of(ask(wire, "step", action), "error")
            assert again["error"]["rollout_id"] == failed["error"]["rollout_id"]
            assert data_of(ask(wire, "reset", {"seed": seed}))["done"] is False


def test_openenvs_own_tool_actions(yard: RunningServer) -> None:
    with socket(yard) as wire:
        tools = data_of(ask(wire, "step", {"type": "list_tools"}))["observation"]["tools"]
        assert [tool["name"] for tool in tools] == ["increment"] and tools[0]["input_schema"]["type"] == "object"
        data_of(ask(wire, "reset", {"seed": 0, "low": 2, "high": 2}))
        call = {"type": "call_tool", "tool_name": "increment", "arguments": {"by": 1}}
        observation = data_of(ask(wire, "step", call))["observation"]
        assert (observation["tool_name"], observation["result"], observation["error"]) == ("increment", "count 1", None)
        refused = data_of(ask(wire, "step", {**call, "tool_name": "jump"}))["observation"]
        assert refused["error"]["error_type"] == "tool_not_found" and refused["result"] is None
        end = data_of(ask(wire, "step", {"tool": "increment", "args": {"by": 1}}))
        assert end["done"] and end["reward"] == 1.0
        about = end["metadata"]
        assert about["terminated"] and about["reward_parts"]["outcome"] == 1.0
    assert yard.client.get(f"/rollouts/{about['rollout_id']}").json()["digest"] == about["episode"]["digest"]


def test_plain_http_shares_an_episode_by_the_id_of_a_session(yard: RunningServer) -> None:
    base = "/openenv/counter"
    assert yard.client.get(f"{base}/health").json() == {"status": "healthy"}
    assert yard.client.get(f"{base}/state").json() == {"episode_id": None, "step_count": 0}
    assert yard.client.get(f"{base}/metadata").json()["name"] == "counter"
    schema = yard.client.get(f"{base}/schema").json()
    assert schema["action"]["properties"]["by"]["type"] == "integer" and {"observation", "state"} <= set(schema)
    assert "/reset" in yard.client.get(f"{base}/openapi.json").json()["paths"]
    started = yard.client.post(f"{base}/reset")
    session = {"X-Session-ID": started.headers["x-session-id"]}
    assert started.json()["metadata"]["session_id"] == session["X-Session-ID"]
    assert yard.client.post(f"{base}/reset", json={"seed": 2}, headers=session).json()["metadata"]["seed"] == 2
    step = yard.client.post(f"{base}/step", json={"action": {"by": 1}, "timeout_s": 5}, headers=session)
    assert step.json()["observation"]["text"] == "count 1"
    assert yard.client.get(f"{base}/state", headers=session).json()["step_count"] == 1
    for body in ({}, {"action": 1}, {"action": {"bye": 1}}, {"action": {"by": 1}, "timeout_s": 0}):
        assert yard.client.post(f"{base}/step", json=body, headers=session).status_code == 422
    assert yard.client.post(f"{base}/step", json={"action": {"by": 1}}).status_code == 422
    assert yard.client.post(f"{base}/reset", json={"seed": -1}).status_code == 422
    assert error_of(yard.client.get("/openenv/none/schema"))["code"] == "not_found"
    other = yard.client.post("/openenv/slow/step", json={"action": {}}, headers=session)
    assert other.status_code == 422
    assert yard.client.post(f"{base}/finish", headers=session).json()["done"] is True
    assert yard.client.post(f"{base}/close", headers=session).json()["status"] == "closed"
    until(lambda: len(yard.service.sessions) == 0, 20, "every session was closed")


@pytest.mark.parametrize("path", ["/openenv/counter/mcp", "/mcp/counter"])
def test_json_rpc_has_neither_reset_nor_reward(yard: RunningServer, path: str) -> None:
    def call(method: Any, **params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        answer = yard.client.post(path, json=body)
        assert answer.status_code == 200 and answer.json()["id"] == 7
        return answer.json()

    assert [tool["name"] for tool in call("tools/list")["result"]["tools"]] == ["increment"]
    session_id = call("openenv/session/create")["result"]["session_id"]
    first = call("tools/call", name="increment", arguments={"by": 1}, session_id=session_id)
    assert first["result"]["data"] == "count 1" and not first["result"]["is_error"]
    assert first["result"]["content"] == [{"type": "text", "text": "count 1"}]
    for name in ("jump", "reset", "finish", "scorecard"):
        assert call("tools/call", name=name, session_id=session_id)["result"]["is_error"]
    last = first
    while not last["result"]["meta"]["done"]:
        last = call("tools/call", name="increment", arguments={"by": 1}, session_id=session_id)
        assert "reward" not in json.dumps(last) and "score" not in json.dumps(last)
    over = call("tools/call", name="increment", arguments={"by": 1}, session_id=session_id)
    assert over["error"]["code"] == -32603 or over["error"]["data"]["code"] == "episode_over"
    for method in ("reset", "finish", "scorecard", "openenv/reset", "initialize", "tools/reset"):
        assert call(method, session_id=session_id)["error"]["code"] == -32601
    assert call("openenv/session/close", session_id=session_id)["result"]["closed"] is True
    assert call("tools/call", name="increment", session_id=session_id)["error"]["code"] == -32602
    assert call("tools/call", name="increment")["error"]["code"] == -32602
    assert call(5)["error"]["code"] == -32600
    assert yard.client.post("/openenv/mcp", content=b"{").json()["error"]["code"] == -32700
    assert yard.client.post("/openenv/mcp", json={}).json()["error"]["code"] == -32600
    with socket(yard, "/openenv/pictures/mcp") as wire:
        wire.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}))
        assert json.loads(wire.recv(20))["result"]["tools"][0]["name"] == "look"
        wire.send("{")
        assert json.loads(wire.recv(20))["error"]["code"] == -32700


def test_a_socket_takes_over_a_session_of_json_rpc(yard: RunningServer) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create"}
    session_id = yard.client.post("/openenv/mcp", json=body).json()["result"]["session_id"]
    with socket(yard, f"/openenv/ws?session_id={session_id}") as wire:
        start = data_of(ask(wire, "reset", {"seed": 4}))
        assert start["metadata"]["session_id"] == session_id
        inner = {**body, "method": "tools/call", "params": {"name": "increment", "arguments": {"by": 1}}}
        assert data_of(ask(wire, "mcp", inner), "mcp")["result"]["data"] == "count 1"
        assert data_of(ask(wire, "state"), "state")["step_count"] == 1
    close = {**body, "method": "openenv/session/close", "params": {"session_id": session_id}}
    assert yard.client.post("/openenv/mcp", json=close).json()["result"]["closed"] is True
    with socket(yard, f"/openenv/ws?session_id={session_id}") as wire:
        assert data_of(json.loads(wire.recv(20)), "error")["code"] == "SESSION_ERROR"


def test_step_with_a_repeated_request_id_runs_once(yard: RunningServer) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create"}
    session_id = yard.client.post("/openenv/mcp", json=body).json()["result"]["session_id"]
    path = f"/openenv/counter/ws?session_id={session_id}"
    with socket(yard, path) as wire:
        ask(wire, "reset", {"seed": 4})
        first = ask(wire, "step", {"by": 1}, request_id="a")
        assert first["request_id"] == "a" and ask(wire, "step", {"by": 1}, request_id="a") == first
        assert data_of(ask(wire, "step", {"by": 2}, request_id="a"), "error")["code"] == "VALIDATION_ERROR"
    with socket(yard, path) as wire:
        assert ask(wire, "step", {"by": 1}, request_id="a") == first
        assert data_of(ask(wire, "step", {"by": 1}))["observation"]["text"] == "count 2"
    yard.client.delete(f"/sessions/{session_id}")


def test_full_server_reports_capacity_before_the_socket_closes() -> None:
    with opened(SETTINGS, max_concurrent=2) as running:
        running.service.sessions.queue_seconds = 0.02
        with socket(running) as first:
            data_of(ask(first, "reset", {"seed": 0}))
            with socket(running) as second:
                full = data_of(json.loads(second.recv(20)), "error")
                assert (full["code"], full["active_sessions"]) == ("CAPACITY_REACHED", 1)
                with pytest.raises(ConnectionClosed):
                    second.recv(20)
            assert data_of(ask(first, "step", {"by": 1}))["done"] is False


def test_a_revoked_key_ends_its_sockets(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    key_file.add(file, "alice", "alice-key-7a1d")
    settings = Settings(environment_api_key=KEY, keys_file=file, protocols=("openenv",))
    with opened(settings) as running, socket(running, key="alice-key-7a1d") as wire:
        data_of(ask(wire, "reset", {"seed": 0}))
        session_id = data_of(ask(wire, "state"), "state")["session_id"]
        with socket(running, f"/openenv/counter/ws?session_id={session_id}") as other:
            assert data_of(json.loads(other.recv(20)), "error")["code"] == "SESSION_ERROR"
        key_file.remove(file, "alice")
        with pytest.raises(ConnectionClosed) as closed:
            wire.recv(20)
        assert closed.value.rcvd is not None and closed.value.rcvd.reason == "key_revoked"


def test_an_unknown_environment_has_no_socket(yard: RunningServer) -> None:
    with pytest.raises(InvalidStatus), socket(yard, "/openenv/none/ws"):
        pass
