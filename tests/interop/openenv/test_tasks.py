"""The task routes of openenv 0.10, and its dialect of JSON-RPC at `/mcp`, next to MCP's own route."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.sync.client import connect

from taskapp_kit.config import Settings
from taskapp_kit.interop.split_tasks import task_answer
from tests.serve.running_server import KEY, RunningServer, error_of, opened
from tests.waiting import until

pytestmark = pytest.mark.server

MCP = {"Accept": "application/json, text/event-stream"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
LIST = {"jsonrpc": "2.0", "id": 3, "method": "tools/list"}


@pytest.fixture(scope="module", params=["openenv,mcp", "all"])
def both(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    with opened(Settings(environment_api_key=KEY, protocols=tuple(request.param.split(",")))) as running:
        yield running


@pytest.fixture(scope="module")
def yard() -> Iterator[RunningServer]:
    with opened(Settings(environment_api_key=KEY, protocols=("openenv",))) as running:
        yield running


def answered(running: RunningServer, path: str, **body: Any) -> Any:
    return running.client.post(path, json=body).raise_for_status().json()


@pytest.mark.parametrize("base", ["/openenv", "/openenv/quiz"])
def test_the_tasks_of_an_environment_are_at_each_base_url(yard: RunningServer, base: str) -> None:
    names = yard.client.get(f"{base}/list_environments").json()
    assert names == (["quiz"] if base.endswith("quiz") else list(yard.service.spec.environments))
    path = f"{base}/quiz"
    splits = yard.client.get(f"{path}/splits").json()
    assert splits == [{"name": "train", "type": "train"}, {"name": "test", "type": "test"}]
    spec = yard.service.spec.environments["quiz"]
    for name, body in (
        ("num_tasks", {"split": "train"}),
        ("tasks", {"split": "train"}),
        ("task_range", {"split": "train", "start": -1}),
        ("task", {"split": "train", "index": 1}),
    ):
        assert answered(yard, f"{path}/{name}", **body) == asyncio.run(task_answer(spec, name, body))


def test_index_of_a_split_selects_its_task(yard: RunningServer) -> None:
    def reset(**body: Any) -> Any:
        return answered(yard, "/openenv/counter/reset", **body)["metadata"]

    task = answered(yard, "/openenv/counter/task", split="test", index=3)["task"]
    assert task == {"split": "test", "seed": 67}
    found = [reset(split="test", index=3), reset(split="test", index=99, seed=70), reset(index=3)]
    assert [(start["split"], start["ignored"]) for start in found] == [
        ("test", []),
        ("test", ["index"]),  # the seed is named: a column of a data set may be called so
        (found[2]["split"], ["index"]),
    ]
    assert [start["seed"] for start in found[:2]] == [67, 70]
    for start in found:
        yard.client.delete(f"/sessions/{start['session_id']}").raise_for_status()
    refused = yard.client.post("/openenv/counter/reset", json={"split": "test", "index": 16})
    assert (refused.status_code, error_of(refused)["code"]) == (400, "index_out_of_range")
    assert yard.client.post("/openenv/counter/reset", json={"split": "test", "index": "x"}).status_code == 422
    until(lambda: len(yard.service.sessions) == 0, 20, "no session is left")


def test_unknown_tasks_are_rejected(yard: RunningServer) -> None:
    for path in ("/openenv/none/splits", "/openenv/quiz/counter/splits", "/openenv/none/list_environments"):
        assert error_of(yard.client.get(path))["code"] == "not_found"
    refused = yard.client.post("/openenv/quiz/tasks", json={"split": "no"})
    assert (refused.status_code, error_of(refused)["code"]) == (400, "unknown_split")
    for body in ({}, {"split": 1}, {"split": "train", "x": 1}):
        assert yard.client.post("/openenv/quiz/tasks", json=body).status_code == 422


@pytest.mark.parametrize("path", ["/mcp", "/mcp/counter"])
def test_mcp_and_openenv_share_a_path(both: RunningServer, path: str) -> None:
    begun = both.client.post(path, json=INITIALIZE, headers=MCP)
    assert begun.json()["result"]["serverInfo"]["name"] == "taskapp yard"
    session = {"Mcp-Session-Id": begun.headers["mcp-session-id"]}
    initialized = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert both.client.post(path, json=initialized, headers={**MCP, **session}).status_code == 202
    theirs = both.client.post(path, json=LIST, headers={**MCP, **session}).json()
    ours = both.client.post(path, json=LIST).json()
    assert [tool["name"] for tool in ours["result"]["tools"]] == ["increment"]
    assert {"task", "increment"} <= {tool["name"] for tool in theirs["result"]["tools"]}
    assert both.client.delete(path, headers={**MCP, **session}).status_code == 200
    meant = both.client.post(path, json=INITIALIZE).json()["error"]
    assert meant["code"] == -32601 and "text/event-stream" in meant["message"]
    assert both.client.get(path).status_code == 405
    until(lambda: len(both.service.sessions) == 0, 20, "no session is left")


def test_openenv_dialect_has_a_socket_at_the_shared_path(both: RunningServer) -> None:
    url = both.url.replace("http", "ws")
    with connect(f"{url}/mcp/quiz", additional_headers={"X-API-Key": KEY}) as wire:
        wire.send(json.dumps(LIST))
        assert len(json.loads(wire.recv(20))["result"]["tools"]) == 1


def test_each_protocol_alone_hints_at_the_other(yard: RunningServer) -> None:
    meant = yard.client.post("/mcp", json=INITIALIZE, headers=MCP).json()["error"]
    assert meant["code"] == -32601 and "--protocols mcp" in meant["message"]
    with opened(Settings(environment_api_key=KEY, protocols=("mcp",))) as running:
        refused = running.client.post("/mcp", json=LIST)
        assert refused.status_code == 422 and "--protocols openenv" in error_of(refused)["hint"]
