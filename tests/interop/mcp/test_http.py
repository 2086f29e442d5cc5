"""MCP over HTTP on a real server: sessions, seeds, roles, keys, old and new revisions, what ends a session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from taskapp_kit.config import Settings
from taskapp_kit.serve import key_file
from taskapp_kit.store import open_store
from tests.serve.running_server import KEY, RunningServer, error_of, opened
from tests.waiting import until_async

mcp = pytest.importorskip("mcp", reason="the extra mcp is not installed")
import httpx2  # noqa: E402
from mcp.client.streamable_http import streamable_http_client  # noqa: E402

pytestmark = [pytest.mark.server, pytest.mark.anyio]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = Settings(environment_api_key=KEY, protocols=("mcp",))
    with opened(settings, store=open_store(str(tmp_path_factory.mktemp("mcp") / "s.db"))) as found:
        yield found


def opened_since(running: RunningServer, before: set[str]) -> set[str]:
    """The open sessions, except other tests' sessions."""
    return {session.session_id for session in running.service.sessions.listed()} - before


@asynccontextmanager
async def client_of(
    running: RunningServer, path: str = "/mcp", *, mode: str = "auto", key: str = KEY, **headers: str
) -> AsyncIterator[Any]:
    async with (
        httpx2.AsyncClient(headers={"X-API-Key": key, **headers}, timeout=20) as http,
        mcp.Client(streamable_http_client(running.url + path, http_client=http), mode=mode) as client,
    ):
        yield client


def rpc(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


INITIALIZE = rpc(
    "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "test", "version": "1"}
)
ACCEPT = {"Accept": "application/json, text/event-stream"}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_policy_plays_one_episode_and_sees_no_reward(running: RunningServer, mode: str) -> None:
    before = opened_since(running, set())
    async with client_of(running, "/mcp?seed=1", mode=mode) as client:
        assert client.protocol_version == "2025-11-25", "the newest revision that has sessions"
        assert [tool.name for tool in (await client.list_tools()).tools] == ["increment", "task"]
        assert (await client.call_tool("task")).content[-1].text == "target 4"
        answers = [await client.call_tool("increment", {"by": 1}) for _ in range(4)]
        assert [block.text for block in answers[-1].content] == ["count 4", "The episode is over."]
        assert not any("reward" in answer.model_dump_json() for answer in answers)
        assert (await client.call_tool("reset")).is_error
        uri = (await client.list_resources()).resources[0].uri
        assert "count 4" in (await client.read_resource(uri)).contents[0].text
    await until_async(lambda: not opened_since(running, before), what="no session is left")


async def test_control_role_resets_and_reads_rewards_and_headers_select_the_episode(running: RunningServer) -> None:
    headers = {"X-Taskapp-Seed": "1", "X-Taskapp-Role": "control", "X-Taskapp-Split": "train"}
    async with client_of(running, "/mcp/counter", **headers) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == ["increment", "task", "reset", "finish", "scorecard"]
        first = await client.call_tool("increment", {"by": 1})
        assert first.structured_content["reward"] == 0.0
        await client.call_tool("reset", {"seed": 1})
        last = await client.call_tool("increment", {"by": 4})
        card = (await client.call_tool("scorecard")).structured_content
        assert last.structured_content["reward"] == card["reward"]
        assert last.structured_content["terminated"]
        (row,) = [row for row in await _rows(running) if row["id"] == card["rollout_id"]]
        assert (row["policy"], row["status"], row["reward"]) == ("session", "terminated", card["reward"])


async def test_deleted_session_is_finished(running: RunningServer) -> None:
    before = {row["id"] for row in await _rows(running)}
    async with client_of(running, "/mcp?seed=1") as client:
        await client.call_tool("increment", {"by": 1})
    (row,) = [row for row in await _rows(running) if row["id"] not in before]
    assert (row["status"], row["stop_reason"], row["length"]) == ("truncated", "finished", 1)


async def _rows(running: RunningServer) -> list[dict[str, Any]]:
    answer = await asyncio.to_thread(running.client.get, "/rollouts")
    rows: list[dict[str, Any]] = answer.json()["rollouts"]
    return rows


def test_invalid_first_requests_are_rejected(running: RunningServer) -> None:
    def post(path: str = "/mcp", body: Any = INITIALIZE, **headers: str) -> httpx.Response:
        return running.client.post(path, json=body, headers={**ACCEPT, **headers})

    assert post("/mcp/nothing").status_code == 422
    assert error_of(post("/mcp?seed=x"))["fields"][0]["loc"] == ["query", "seed"]
    assert post("/mcp?role=root").status_code == 422
    assert post(body=rpc("tools/list")).status_code == 422, "no session"
    assert post(**{"Mcp-Session-Id": "0" * 32}).status_code == 404
    refused = running.client.get("/mcp", headers=ACCEPT)
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST, DELETE")
    new = post(**{"MCP-Protocol-Version": "2026-07-28"})
    assert (new.status_code, new.json()["error"]["code"], new.json()["id"]) == (400, -32022, 1)
    assert "error" in post(body=rpc("initialize", nothing=1)).json()
    assert running.client.post("/mcp", json=INITIALIZE, headers={"Accept": "text/plain"}).status_code == 406
    other = running.client.post("/sessions", json={}).json()["session_id"]
    assert post(body=rpc("tools/list"), **{"Mcp-Session-Id": other}).status_code == 404, "another door's"
    running.client.delete(f"/sessions/{other}")


def test_session_belongs_to_its_key_and_control_requires_an_operators_key(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    one, two = "alice-key-7a1d", "bob-key-88e2"
    key_file.add(file, "one", one, max_in_flight=1)
    key_file.add(file, "two", two)
    with opened(Settings(environment_api_key=KEY, keys_file=file, protocols=("mcp",))) as running:

        def post(key: str, path: str = "/mcp", body: Any = INITIALIZE, **more: str) -> httpx.Response:
            headers = {**ACCEPT, "X-API-Key": key, **more}
            return httpx.post(running.url + path, json=body, headers=headers, timeout=20)

        assert post(one, "/mcp?role=control").status_code == 403
        answer = post(one)
        assert answer.status_code == 200
        session = {"Mcp-Session-Id": answer.headers["mcp-session-id"]}
        assert post(one).status_code == 429, "as many sessions as it may have rollouts"
        assert post(two, body=rpc("tools/list"), **session).status_code == 404
        assert post(one, body=rpc("tools/list"), **session).status_code == 200
        deleted = httpx.delete(running.url + "/mcp", headers={**ACCEPT, "X-API-Key": one, **session})
        assert deleted.status_code == 200
        assert post(one, body=rpc("tools/list"), **session).status_code == 404
        assert post(one).status_code == 200
    assert len(running.service.sessions) == 0
