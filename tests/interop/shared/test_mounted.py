"""A task app mounted in another FastAPI application, as docs/connect/mounting.md shows it, on a real uvicorn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from websockets.sync.client import connect

from taskapp_kit.asgi import build
from taskapp_kit.client import SyncTaskAppClient
from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from taskapp_kit.store import open_store

pytestmark = pytest.mark.server
KEY = "mounted-key-4c19e7"
KEY_HEADER = {"X-API-Key": KEY}


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'rollouts.db'}"


@pytest.fixture
def server(database: str) -> Iterator[BackgroundServer]:
    settings = Settings(
        environment_api_key=KEY, store=database, protocols=("openenv", "ors", "mcp", "nemo"), grace_seconds=0
    )
    tasks = build(find_app("examples/adder.py"), settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with tasks.router.lifespan_context(tasks):
            yield

    outer = FastAPI(lifespan=lifespan)
    outer.mount("/tasks", tasks)
    outer.add_api_route("/own", lambda: "own")
    with BackgroundServer(outer) as running:
        yield running


@pytest.mark.parametrize("path", ["/health", "/openapi.json", "/list_environments", "/openenv/adder/schema"])
def test_mounted_routes_require_the_key_and_reject_other_sites(server: BackgroundServer, path: str) -> None:
    url = f"{server.url}/tasks{path}"
    assert httpx.get(url, headers=KEY_HEADER).status_code == 200
    assert httpx.get(url).status_code == 401
    assert httpx.get(url, headers={**KEY_HEADER, "Origin": "https://elsewhere.example"}).status_code == 403


def test_the_outer_application_keeps_its_own_routes(server: BackgroundServer) -> None:
    assert httpx.get(f"{server.url}/own").json() == "own"
    assert httpx.get(f"{server.url}/tasks/").json()["status"] == "ok"  # open, as `GET /` is anywhere
    assert httpx.get(f"{server.url}/health", headers=KEY_HEADER).status_code == 404


def test_clients_drive_a_mounted_app(server: BackgroundServer) -> None:
    url = f"{server.url}/tasks"
    with SyncTaskAppClient(url, KEY) as client, client.session("adder") as session:
        assert session.reset(seed=7)["observation"]["text"] == "target 10, total 0"
        address = f"{url.replace('http', 'ws', 1)}/sessions/{session.session_id}/socket"
        with connect(address, additional_headers=KEY_HEADER) as socket:
            socket.send('{"type": "step", "id": 1, "data": {"tool": "add", "args": {"amount": 3}}}')
            assert "target 10, total 3" in str(socket.recv())


def test_an_accepted_rollout_is_at_its_location(server: BackgroundServer) -> None:
    with httpx.Client(headers=KEY_HEADER) as http:
        body = {
            "run_id": "mounted",
            "env": {"seed": 7},
            "policy": {"config": {"policy": "random"}},
            "ops": [],
            "mode": "eval",
        }
        accepted = http.post(f"{server.url}/tasks/rollout", json=body, headers={"Prefer": "respond-async"})
        assert accepted.status_code == 202 and accepted.json()["url"] == accepted.headers["Location"]
        result = http.get(f"{server.url}{accepted.headers['Location']}", headers={"Prefer": "wait=20"})
        assert result.json()["rollout_id"] == accepted.json()["rollout_id"]


def test_stopping_the_outer_application_ends_and_stores_episodes(server: BackgroundServer, database: str) -> None:
    http = httpx.Client(base_url=f"{server.url}/tasks", headers=KEY_HEADER)
    session = http.post("/sessions", json={}).json()["session_id"]
    rollout_id = http.post(f"/sessions/{session}/reset", json={"seed": 7}).json()["rollout_id"]
    http.close()
    server.stop()
    stored = asyncio.run(open_store(database).load(rollout_id))
    assert stored is not None and stored.failure is not None
    assert stored.failure["code"] == "server_stopping"
