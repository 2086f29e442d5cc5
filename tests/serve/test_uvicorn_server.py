"""uvicorn as commands and tests run it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
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
from tests.serve.running_server import KEY, app, fragments
from tests.waiting import until

pytestmark = pytest.mark.server


def test_it_answers_as_soon_as_it_is_entered_and_leaves_nothing() -> None:
    before = signal.getsignal(signal.SIGINT)
    with BackgroundServer(create(Service(app), Settings())) as server:
        assert httpx.get(server.url).status_code == 200
        assert server.port > 0 and server.url == f"http://127.0.0.1:{server.port}"
    assert signal.getsignal(signal.SIGINT) is before
    assert not [thread for thread in threading.enumerate() if thread.name == f"taskapp-server-{server.port}"]
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url)
    server.stop()


def test_two_at_once() -> None:
    one, two = (BackgroundServer(create(Service(app), Settings())) for _ in range(2))
    with one, two:
        assert one.port != two.port
        assert [httpx.get(server.url).status_code for server in (one, two)] == [200, 200]


def test_a_taken_port_is_said_with_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"Port {port} .*--port"):
            bind("127.0.0.1", port)


def test_a_host_that_is_none() -> None:
    with pytest.raises(ConfigError, match=r"'256\.0\.0\.1\.invalid'"):
        bind("256.0.0.1.invalid", 0)


def test_an_app_that_does_not_start_is_an_error() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.failed", "message": "no"})

    with pytest.raises(RuntimeError, match="log"), BackgroundServer(broken):
        raise AssertionError


def test_what_the_startup_raised_is_told() -> None:
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
    with pytest.raises(RuntimeError, match=rf"\b{server.port} .* {600 if left else 0.3} s: "):
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


def test_an_address_that_is_held_already() -> None:
    held = bind("127.0.0.1", 0)
    with BackgroundServer(create(Service(app), Settings()), bound=held) as server:
        assert server.port == held.getsockname()[1]
        assert httpx.get(server.url).status_code == 200
    assert held.fileno() == -1


def test_running_requests_are_finished_before_it_stops() -> None:
    entered = threading.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            entered.set()
            await asyncio.sleep(0.4)
            await json_answer({"ok": True})(scope, receive, send)

    server = BackgroundServer(slow)
    server.start()
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(httpx.get(server.url).status_code))
    thread.start()
    assert entered.wait(20)
    server.stop()
    thread.join()
    assert found == [200]


SERVED = """
import sys
from taskapp_kit import Step, TaskApp, action
from taskapp_kit.asgi import build
from taskapp_kit.config import from_environment
from taskapp_kit.serve.uvicorn_server import run
app = TaskApp("tiny", version="1")
@app.environment("tiny", splits={"train": range(4)})
class Tiny:
    "Tiny."
    def reset(self, seed: int) -> str:
        return "go"
    @action
    def go(self) -> Step:
        "Go."
        return Step("gone", reward=1.0, terminated=True)
if __name__ == "__main__":
    run(build(app, from_environment()), port=int(sys.argv[1]))
"""


@pytest.mark.process
def test_a_whole_process_logs_no_key_and_stops_on_sigterm(tmp_path: Path) -> None:
    file = tmp_path / "tiny.py"
    file.write_text(SERVED)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = {"ENVIRONMENT_API_KEY": KEY, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path.cwd())}
    process = subprocess.Popen(
        [sys.executable, str(file), str(port)], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"X-API-Key": KEY}) as client:
            end = time.monotonic() + 20
            while True:
                try:
                    client.get("/")
                    break
                except httpx.ConnectError:
                    assert time.monotonic() < end and process.poll() is None
                    time.sleep(0.05)
            body = {
                "run_id": "r",
                "env": {"seed": 1},
                "policy": {"config": {"policy": "random"}},
                "ops": [],
                "mode": "rl",
            }
            rollout_id = client.post(f"/rollout?key={KEY}", json=body).json()["rollout_id"]
            client.get(f"/{KEY}")
            client.get("/health", headers={"X-API-Key": KEY + "x"})
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=10)
    finally:
        process.kill()
    assert process.returncode in (0, -signal.SIGTERM)
    assert f"rollout_id={rollout_id}" in output
    assert not fragments(output, KEY)


DRAINED = """
import sys
from taskapp_kit.asgi import build
from taskapp_kit.config import from_environment
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.serve.uvicorn_server import run
if __name__ == "__main__":
    served = build(find_app(sys.argv[1]), from_environment())
    run(served, port=int(sys.argv[2]), grace_seconds=int(sys.argv[3]), drain=served.state.drain)
"""
LIVE_APP = Path(__file__).parent.parent / "live_app.py"


def _hears_ctrl_c() -> None:
    """A suite that runs in the background of a shell ignores SIGINT, and its children would too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def drained(folder: Path, grace_seconds: int) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client]]:
    """A whole process that drains at a signal."""
    program = folder / "program.py"
    program.write_text(DRAINED)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = {
        "ENVIRONMENT_API_KEY": KEY, "PATH": os.environ["PATH"], "PYTHONPATH": str(Path.cwd()),
        "TASKAPP_GRACE_SECONDS": str(grace_seconds),
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, str(program), str(LIVE_APP), str(port), str(grace_seconds)],
        env=environ, cwd=folder, stderr=subprocess.DEVNULL,
        preexec_fn=_hears_ctrl_c,  # noqa: PLW1509 - nothing but that
    )  # fmt: skip
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"X-API-Key": KEY}, timeout=20) as client:
            until(lambda: _answers(client), 20)
            yield process, client
    finally:
        process.kill()
        process.wait()


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/").status_code == 200
    except httpx.TransportError:
        return False


class Asking(threading.Thread):
    """One request in the background."""

    def __init__(self, client: httpx.Client, body: dict[str, Any], **headers: str) -> None:
        super().__init__()
        self.client, self.body, self.headers = client, body, headers
        self.answer: httpx.Response
        self.start()

    def run(self) -> None:
        self.answer = self.client.post("/rollout", json=self.body, headers=self.headers)

    def done(self) -> httpx.Response:
        self.join(20)
        return self.answer


@pytest.mark.process
def test_while_it_drains_it_answers_and_then_it_ends_well(tmp_path: Path) -> None:
    body = a_body(gate=tmp_path / "gate", mark=tmp_path / "mark")
    with drained(tmp_path, 20) as (process, client):
        asked = [Asking(client, body), Asking(client, body, Accept="text/event-stream")]
        path = client.post("/rollout", json=body, headers={"Prefer": "respond-async"}).headers["location"]
        until(lambda: marks(tmp_path / "mark", "waiting") == 3)
        process.send_signal(signal.SIGTERM)
        until(lambda: client.get("/health").json()["status"] == "draining")
        refused = client.post("/rollout", json=a_body())
        assert refused.status_code == 503
        assert refused.json()["detail"]["error"]["code"] == "draining"
        assert int(refused.headers["retry-after"]) >= 1
        assert client.get(path).status_code == 202
        waiting = threading.Thread(target=lambda: fetched.append(client.get(path, headers={"Prefer": "wait=20"})))
        fetched: list[httpx.Response] = []
        waiting.start()
        time.sleep(0.2)
        (tmp_path / "gate").touch()
        assert [asking.done().status_code for asking in asked] == [200, 200]
        assert "event: result" in asked[1].answer.text
        waiting.join(20)
        assert fetched[0].status_code == 200
        assert process.wait(5) == 0


@pytest.mark.ci
@pytest.mark.process
@pytest.mark.parametrize("how", [pytest.param("the grace is over", marks=pytest.mark.exhaustive), "a second signal"])
def test_what_does_not_end_in_time_is_answered_as_cancelled(tmp_path: Path, how: str) -> None:
    with drained(tmp_path, 1 if how == "the grace is over" else 60) as (process, client):
        asked = [
            Asking(client, a_body(gate=tmp_path / "gate", mark=tmp_path / "mark"), **headers)
            for headers in ({}, {"Idempotency-Key": "k"}, {"Accept": "text/event-stream"})
        ]
        until(lambda: marks(tmp_path / "mark", "waiting") == 3)
        process.send_signal(signal.SIGTERM)
        if how == "a second signal":
            until(lambda: client.get("/health").json()["status"] == "draining")
            process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        plain, keyed, stream = (asking.done() for asking in asked)
        assert process.wait(10) == 0
        assert time.monotonic() - began < 4
    for response in (plain, keyed):
        assert response.status_code == 503
        error = response.json()["detail"]["error"]
        assert (error["boundary"], error["code"]) == ("cancelled", "server_stopping")
        assert response.headers["retry-after"]
    assert "event: failure" in stream.text and "server_stopping" in stream.text


@pytest.mark.process
def test_ctrl_c_drains_too_and_comes_out_as_an_interruption(tmp_path: Path) -> None:
    with drained(tmp_path, 20) as (process, client):
        asked = Asking(client, a_body(gate=tmp_path / "gate", mark=tmp_path / "mark"))
        until(lambda: marks(tmp_path / "mark", "waiting") == 1)
        process.send_signal(signal.SIGINT)
        until(lambda: client.get("/health").json()["status"] == "draining")
        (tmp_path / "gate").touch()
        assert asked.done().status_code == 200
        assert process.wait(5) in (1, 130, -signal.SIGINT)
