"""No route and no websocket answers a page of another site."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from fastapi.routing import APIRoute
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from taskapp_kit.asgi import create
from taskapp_kit.config import Settings
from taskapp_kit.jobs.server.app import create_backend
from taskapp_kit.rollout.service import Service
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from taskapp_kit.testing import MockModel
from tests.serve.running_server import KEY, RunningServer, app, error_of, opened

pytestmark = pytest.mark.server

SETTINGS = Settings(environment_api_key=KEY, protocols=("all",))
BUILT: Starlette = create(Service(app), SETTINGS, exposure="local")
FILLED = {"environment": "counter", "tool": "increment"}
ROUTES = sorted(
    {(min(route.methods), route.path) for route in BUILT.routes if isinstance(route, APIRoute)}
    | {("POST", "/mcp"), ("GET", "/openapi.json"), ("GET", "/docs"), ("GET", "/ui/")}
)
SOCKETS = sorted(route.path for route in BUILT.routes if isinstance(route, WebSocketRoute))
FOREIGN = [
    ({"Host": "evil.example", "Origin": "http://evil.example"}, 421, "host_not_allowed"),
    ({"Origin": "http://evil.example"}, 403, "origin_not_allowed"),
    ({"Origin": "null", "X-Forwarded-Host": "null"}, 403, "origin_not_allowed"),
]


def path_of(template: str) -> str:
    for name, value in FILLED.items():
        template = template.replace(f"{{{name}}}", value)
    return template.replace("{rollout_id}", "0" * 32).replace("{session_id}", "0" * 32).replace("{sha256}", "0" * 64)


@pytest.fixture(scope="module")
def local() -> Iterator[RunningServer]:
    with opened(SETTINGS, exposure="local") as found:
        yield found


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_route_rejects_other_sites(local: RunningServer, method: str, path: str) -> None:
    for headers, status, code in FOREIGN:
        answer = local.client.request(method, path_of(path), headers=headers)
        assert answer.status_code == status
        assert error_of(answer)["code"] == code


def test_socket_routes_are_found() -> None:
    assert SOCKETS


@pytest.mark.parametrize("path", SOCKETS)
@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Host": "evil.example"}], ids=str)
def test_a_websocket_rejects_other_sites(local: RunningServer, path: str, headers: dict[str, str]) -> None:
    url = local.url.replace("http", "ws") + path_of(path)
    with connect(url, additional_headers={"X-API-Key": KEY, "Origin": local.url}):
        pass
    with pytest.raises(InvalidStatus) as refused, connect(url, additional_headers={"X-API-Key": KEY, **headers}):
        pass
    assert refused.value.response.status_code == 403


def test_an_exposed_server_answers_under_any_name_unless_it_has_hosts() -> None:
    with opened(Settings(environment_api_key=KEY)) as found:
        assert found.client.get("/health", headers={"Host": "any.example"}).status_code == 200
    with opened(Settings(environment_api_key=KEY, hosts=("app.example",))) as found:
        assert found.client.get("/health", headers={"Host": "any.example"}).status_code == 421
        assert found.client.get("/health", headers={"Host": "app.example"}).status_code == 200
        proxied = {"Host": "app.example", "Origin": "https://app.example"}
        assert found.client.get("/health", headers=proxied).status_code == 200


def test_the_backend_rejects_other_sites() -> None:
    with BackgroundServer(create_backend([KEY])) as server:
        for headers, status, _ in FOREIGN:
            answer = httpx.get(f"{server.url}/api/rl/jobs", headers={"Authorization": f"Bearer {KEY}", **headers})
            assert answer.status_code == status


def test_the_mock_model_rejects_pages_of_other_sites() -> None:
    with MockModel() as model:
        assert httpx.get(f"{model.url}/models", headers={"Origin": "http://evil.example"}).status_code == 403
        assert httpx.get(f"{model.url}/models", headers={"Origin": model.root}).status_code == 200
