"""The application around the routes: redirects, verbs, headers, documents, other origins, other routers."""

from __future__ import annotations

from itertools import product

import httpx
import pytest
from fastapi import APIRouter, HTTPException
from starlette.testclient import TestClient

from taskapp_kit.asgi import create
from taskapp_kit.config import Settings
from taskapp_kit.rollout.service import Service
from tests.serve.running_server import KEY, RunningServer, app, error_of, opened

pytestmark = pytest.mark.server

ROUTES = {
    "/": "GET, HEAD", "/health": "GET", "/info": "GET", "/task_info": "GET", "/rollout": "POST", "/done": "POST",
    "/blobs/" + "0" * 64: "GET", "/rollouts/" + "0" * 32: "DELETE, GET", "/metrics": "GET",
}  # fmt: skip


def test_wrong_method_returns_405_with_the_allowed_methods(running: RunningServer) -> None:
    for (path, allowed), verb in product(ROUTES.items(), ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")):
        if verb not in allowed.split(", "):
            response = running.client.request(verb, path)
            assert (response.status_code, response.headers["allow"]) == (405, allowed), (verb, path)
            assert verb == "HEAD" or error_of(response)["code"] == "method_not_allowed"


@pytest.mark.parametrize(
    "path", ["/rollout/", "/health/", "/nothing", "/rollout/x", "/%2Frollout", "/ROLLOUT", "/task_info/0"]
)
def test_unknown_route_returns_404_and_no_redirect(running: RunningServer, path: str) -> None:
    for verb in ("GET", "POST"):
        response = running.client.request(verb, path, headers={"Host": "evil.example"})
        assert response.status_code == 404
        assert error_of(response)["code"] == "not_found"
        assert "evil.example" not in response.text + str(response.headers)


def test_response_headers_reveal_no_server_software(running: RunningServer) -> None:
    for response in (running.stranger.get("/"), running.client.get("/health"), running.stranger.get("/health")):
        assert set(response.headers) <= {
            "date", "content-type", "content-length", "cache-control", "x-content-type-options", "www-authenticate",
        }  # fmt: skip
        assert response.headers["cache-control"] == "no-store"


def test_docs_need_a_key_unless_exposure_is_local(running: RunningServer) -> None:
    for path in ("/docs", "/openapi.json"):
        assert running.stranger.get(path).status_code == 401
        assert running.client.get(path).status_code == 200
    with opened(exposure="local") as local:
        for path in ("/docs", "/openapi.json"):
            assert local.stranger.get(path).status_code == 200
            assert local.stranger.post(path).status_code == 401
        assert local.stranger.get("/health").status_code == 401


def test_docs_page_loads_nothing_from_the_network(running: RunningServer) -> None:
    page = running.client.get("/docs")
    assert "/rollout" in page.text and "curl" in page.text and "<script" not in page.text
    assert "http://" not in page.text and "https://" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]


def test_openapi_lists_every_route_and_its_security(running: RunningServer) -> None:
    document = running.client.get("/openapi.json").json()
    operation = document["paths"]["/rollout"]["post"]
    assert {"401", "408", "413", "415", "422", "500", "502", "503", "504"} <= set(operation["responses"])
    assert operation["security"] and document["paths"]["/"]["get"]["security"] == []
    assert set(document["paths"]) == {
        "/", "/health", "/info", "/task_info", "/rollout", "/rollouts", "/rollouts/{rollout_id}", "/done", "/blobs/{sha256}",
        "/metrics", "/score_group", "/sessions", "/sessions/{session_id}",
        *(f"/sessions/{{session_id}}/{verb}" for verb in ("reset", "step", "finish", "close")),
    }  # fmt: skip


PREFLIGHT = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST",
             "Access-Control-Request-Headers": "x-api-key,content-type"}  # fmt: skip


def test_cors_is_off_by_default(running: RunningServer) -> None:
    assert not [name for name in running.client.get("/health", headers=PREFLIGHT).headers if "access-control" in name]
    assert running.stranger.options("/rollout", headers=PREFLIGHT).status_code == 401


def test_named_origins_are_allowed_without_credentials() -> None:
    settings = Settings(environment_api_key=KEY, cors_origins=("https://a.example",))
    with opened(settings) as named:
        preflight = named.stranger.options("/rollout", headers=PREFLIGHT)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "https://a.example"
        assert "access-control-allow-credentials" not in preflight.headers
        refused = named.stranger.get("/health", headers={"Origin": "https://a.example"})
        assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == "https://a.example"
        other = named.client.get("/health", headers={"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers
        assert (
            named.stranger.options("/rollout", headers={**PREFLIGHT, "Origin": "https://evil.example"}).status_code
            == 400
        )


def test_included_router_has_the_same_key_check_and_errors() -> None:
    service = Service(app)
    built = create(service, Settings(environment_api_key=KEY))
    router = APIRouter()

    @router.get("/other/{number}")
    def other(number: int) -> dict[str, int]:
        if number == 1:
            raise HTTPException(409, detail="sentinel-detail")
        if number == 2:
            raise LookupError("sentinel-detail")
        return {"number": number}

    built.include_router(router)
    with TestClient(built, headers={"X-API-Key": KEY}) as client:
        assert client.get("/other/7").json() == {"number": 7}
        for path, status, code in (("1", 409, "http_409"), ("2", 500, "internal_error"), ("x", 422, "invalid_request")):
            response = client.get(f"/other/{path}")
            assert response.status_code == status and error_of(response)["code"] == code
            assert "sentinel" not in response.text
        assert client.get("/other/7", headers={"X-API-Key": "wrong"}).status_code == 401


def test_service_closes_with_the_server() -> None:
    closed: list[bool] = []

    class Watched(Service):
        async def close(self) -> None:
            closed.append(True)
            await super().close()

    with opened(make=Watched) as running:
        httpx.get(running.url)
        assert not closed
    assert closed == [True]
