"""uvicorn as commands and tests run it."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

from taskapp_kit.asgi import create
from taskapp_kit.config import Settings
from taskapp_kit.errors import ConfigError
from taskapp_kit.net.response import json_answer
from taskapp_kit.rollout.service import Service
from taskapp_kit.serve.uvicorn_server import BackgroundServer, bind
from tests.live_app import a_body, marks
from tests.serve.running_server import app, error_of
from tests.stress.server import Server
from tests.waiting import until

pytestmark = pytest.mark.server


def test_background_server_answers_at_once_and_leaves_nothing() -> None:
    before = signal.getsignal(signal.SIGINT)
    with BackgroundServer(create(Service(app), Settings())) as server:
        assert httpx.get(server.url).status_code == 200
        assert server.port > 0 and server.url == f"http://127.0.0.1:{server.port}"
    assert signal.getsignal(signal.SIGINT) is before
    assert not [thread for thread in threading.enumerate() if thread.name == f"taskapp-server-{server.port}"]
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url)
    server.stop()


def test_an_address_that_cannot_be_bound_is_a_config_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError):
            bind("127.0.0.1", port)
    with pytest.raises(ConfigError):
        bind("256.0.0.1.invalid", 0)


def test_an_app_that_does_not_start_is_an_error() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.failed", "message": "no"})

    with pytest.raises(RuntimeError, match="log"), BackgroundServer(broken):
        raise AssertionError


def test_startup_exception_is_the_cause_of_the_error() -> None:
    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        raise LookupError("the data is not there")
        yield

    with (
        pytest.raises(RuntimeError, match=r"LookupError: the data is not there\.") as raised,
        BackgroundServer(Starlette(lifespan=lifespan)),
    ):
        raise AssertionError
    assert isinstance(raised.value.__cause__, LookupError)


@pytest.mark.parametrize("left", [False, True])
def test_a_startup_without_end_is_cancelled_and_the_port_is_free(left: bool) -> None:
    ended, leave = threading.Event(), threading.Event()

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()
        yield

    server = BackgroundServer(Starlette(lifespan=lifespan))
    if left:
        leave.set()
    with pytest.raises(RuntimeError, match=str(server.port)):
        server.start(600 if left else 0.3, leave=leave)
    assert ended.is_set()
    assert not server.running
    bind("127.0.0.1", server.port).close()


def test_a_shutdown_without_end_is_cancelled() -> None:
    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        yield
        await asyncio.sleep(600)

    server = BackgroundServer(Starlette(lifespan=lifespan))
    server.start()
    assert server.running
    assert server.stop(0.3)
    assert not server.running


@pytest.mark.ci
def test_code_that_blocks_the_server_outlives_it_and_that_is_said() -> None:
    entered, release = threading.Event(), threading.Event()

    async def blocking(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            entered.set()
            release.wait(60)
            await json_answer({"ok": True})(scope, receive, send)

    server = BackgroundServer(blocking)
    server.start()
    asking = threading.Thread(target=lambda: httpx.get(server.url, timeout=60))
    asking.start()
    try:
        assert entered.wait(20)
        assert not server.stop(0.1)
        assert server.running
    finally:
        release.set()
        asking.join()
    assert server.stop()


def test_address_in_use_is_a_config_error() -> None:
    held = bind("127.0.0.1", 0)
    with BackgroundServer(create(Service(app), Settings()), bound=held) as server:
        assert server.port == held.getsockname()[1]
        assert httpx.get(server.url).status_code == 200
    assert held.fileno() == -1


LIVE_APP = Path(__file__).parent.parent / "live_app.py"


@contextmanager
def drained(folder: Path, grace_seconds: int) -> Iterator[tuple[Server, httpx.Client]]:
    """A whole process that drains at a signal."""
    with (
        Server(folder / "server", "--grace-seconds", str(grace_seconds), app=LIVE_APP) as server,
        httpx.Client(base_url=server.url, headers=server.headers, timeout=20) as client,
    ):
        yield server, client


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_while_it_drains_it_answers_and_then_it_ends_well(tmp_path: Path, number: int) -> None:
    body = a_body(gate=tmp_path / "gate", mark=tmp_path / "mark")
    with drained(tmp_path, 20) as (server, client), ThreadPoolExecutor() as pool:
        plain = pool.submit(client.post, "/rollout", json=body)
        stream = pool.submit(client.post, "/rollout", json=body, headers={"Accept": "text/event-stream"})
        path = client.post("/rollout", json=body, headers={"Prefer": "respond-async"}).headers["location"]
        until(lambda: marks(tmp_path / "mark", "waiting") == 3)
        server.signal(number)
        until(lambda: server.health()["status"] == "draining")
        refused = client.post("/rollout", json=a_body())
        assert (refused.status_code, error_of(refused)["code"]) == (503, "draining")
        assert int(refused.headers["retry-after"]) >= 1
        assert client.get(path).status_code == 202
        fetched = pool.submit(client.get, path, headers={"Prefer": "wait=20"})
        (tmp_path / "gate").touch()
        assert [asked.result().status_code for asked in (plain, stream, fetched)] == [200, 200, 200]
        assert "event: result" in stream.result().text
        assert server.process.wait(5) in ((0,) if number == signal.SIGTERM else (0, 1, 130, -signal.SIGINT))


@pytest.mark.ci
@pytest.mark.process
def test_a_second_signal_ends_the_grace_and_all_are_answered_as_cancelled(tmp_path: Path) -> None:
    body = a_body(gate=tmp_path / "gate", mark=tmp_path / "mark")
    with drained(tmp_path, 60) as (server, client), ThreadPoolExecutor() as pool:
        all_headers = ({}, {"Idempotency-Key": "k"}, {"Accept": "text/event-stream"})
        asked = [pool.submit(client.post, "/rollout", json=body, headers=headers) for headers in all_headers]
        until(lambda: marks(tmp_path / "mark", "waiting") == 3)
        server.terminate()
        until(lambda: server.health()["status"] == "draining")
        server.terminate()
        plain, keyed, stream = (answer.result() for answer in asked)
        assert server.process.wait(10) == 0
    for response in (plain, keyed):
        error = error_of(response)
        assert (response.status_code, error["boundary"], error["code"]) == (503, "cancelled", "server_stopping")
        assert response.headers["retry-after"]
    assert "event: failure" in stream.text and "server_stopping" in stream.text
