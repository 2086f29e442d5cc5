"""Sessions through `TaskAppClient`, of a real task app: both forms, repetition after a broken connection, failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from aiohttp import web

from taskapp_kit.asgi import create
from taskapp_kit.client import SyncTaskAppClient, TaskAppClient
from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.errors import RequestError, TaskAppError, TaskAppUnreachable
from taskapp_kit.rollout.service import Service, ServiceSettings
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from tests import live_app
from tests.client.listening import drop, listening

pytestmark = pytest.mark.server

KEY = "Wq7-amber-5f0a"


@contextmanager
def serving(**settings: Any) -> Iterator[tuple[str, Service]]:
    service = Service(find_app(live_app.__file__), ServiceSettings(**settings))
    with BackgroundServer(create(service, Settings(environment_api_key=KEY))) as server:
        yield server.url, service


def test_an_episode_is_driven_and_its_session_closed() -> None:
    async def drive(url: str) -> list[Any]:
        async with TaskAppClient(url, KEY) as client, client.session("show", run_id="mine") as session:
            start = await session.reset(seed=4)
            steps = [await session.step("go"), await session.step(actions=[{"tool": "go", "args": {}}])]
            return [start, *steps, await session.finish(), await session.state()]

    with serving() as (url, service):
        start, first, second, end, state = asyncio.run(drive(url))
        assert len(service.sessions) == 0
    assert [item["observation"]["text"][:16] for item in (start, first, second)] == [
        f"seed 4, number {number}" for number in range(3)
    ]
    assert (end["truncated"], end["reward"], end["episode"]["stop_reason"]) == (True, 0.0, "finished")
    assert (state["state"], state["run_id"]) == ("over", "mine")


def test_the_blocking_form_does_the_same() -> None:
    with serving() as (url, service), SyncTaskAppClient(url, KEY) as client:
        with client.session() as session:
            assert session.reset(0, config={"steps": 1})["limits"]["max_steps"] == 200
            assert session.step("go")["reward"] == 1.0
            assert session.finish()["episode"]["status"] == "terminated"
            assert session.state()["turn"] == 1
            with pytest.raises(TaskAppError) as over:
                session.step("go")
            assert (over.value.status, over.value.code) == (409, "episode_over")
            session.reset(0, config={"breaks": "step", "at": 0})
            with pytest.raises(TaskAppError) as failed:
                session.step("go")
            assert (failed.value.boundary, failed.value.status) == ("environment", 500) and failed.value.rollout_id
            with pytest.raises(RequestError):
                session.step("go", {"x": object()})
            session.close()
            with pytest.raises(TaskAppError) as gone:
                session.state()
            assert gone.value.code == "session_not_found"
        with pytest.raises(TaskAppError), client.session("nowhere"):
            pass
        assert len(service.sessions) == 0


Between = Callable[[web.Request, web.Response], web.StreamResponse]


@contextmanager
def proxy(url: str, answer: Between) -> Iterator[str]:
    """Passes each request on; answers it with what `answer` makes of the answer."""

    async def pass_on(request: web.Request) -> web.StreamResponse:
        async with httpx.AsyncClient() as forward:
            sent = {"headers": {"X-API-Key": KEY}, "content": await request.read()}
            got = await forward.request(request.method, url + request.path, **sent)
        whole = web.Response(status=got.status_code, body=got.content, content_type="application/json")
        return answer(request, whole)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", pass_on)
    with listening(app) as through:
        yield through


def test_a_step_whose_answer_is_lost_is_sent_again_and_done_once() -> None:
    """Every other answer is dropped."""
    posts: list[str] = []

    async def drive(url: str) -> tuple[Any, ...]:
        async with TaskAppClient(url, KEY, retries=2) as client, client.session() as session:
            return await session.reset(seed=0), await session.step("go"), await session.step("go")

    def every_other(request: web.Request, answer: web.Response) -> web.StreamResponse:
        posts.append(request.path.rpartition("/")[2])
        return drop(request) if len(posts) % 2 == 0 else answer

    with serving() as (url, _), proxy(url, every_other) as through:
        start, first, second = asyncio.run(drive(through))
    assert (start["observation"]["text"], first["turn"], second["turn"]) == ("seed 0, number 0, ü", 1, 2)
    assert posts.count("reset") + posts.count("step") > 3


def test_the_redirects_of_a_gateway_are_followed_and_no_others() -> None:
    """A gateway answers a long step with redirects, and at the end with the step's answer."""
    requests: list[str] = []
    steps: list[web.Response] = []

    async def drive(url: str) -> Any:
        async with TaskAppClient(url, KEY) as client, client.session() as session:
            await session.reset(seed=0)
            first = await session.step("go")
            with pytest.raises(TaskAppError) as foreign:
                await session.step("go", timeout_s=9)
            return first, foreign.value

    def redirected(request: web.Request, answer: web.Response) -> web.StreamResponse:
        requests.append(f"{request.method} {request.path}")
        if request.path == "/later/0":
            raise web.HTTPSeeOther("/later/1")
        if request.path == "/later/1":
            return steps[0]
        if not request.path.endswith("/step"):
            return answer
        steps.append(answer)
        raise web.HTTPSeeOther("/later/0" if len(steps) == 1 else "http://127.0.0.2:9/later")

    with serving() as (url, _), proxy(url, redirected) as through:
        first, foreign = asyncio.run(drive(through))
    assert first["turn"] == 1 and foreign.code == "foreign_redirect"
    assert requests[3:5] == ["GET /later/0", "GET /later/1"]


def test_a_full_server_is_asked_again_and_a_silent_one_is_not() -> None:
    with serving(max_concurrent=2) as (url, service), SyncTaskAppClient(url, KEY, retries=0) as client:
        service.sessions.queue_seconds = 0.01
        with client.session(), pytest.raises(TaskAppError) as full, client.session():
            pass
        assert (full.value.status, full.value.code) == (503, "saturated")
    with pytest.raises(TaskAppUnreachable), client.session():
        pass
