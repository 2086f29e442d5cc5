"""uvicorn as commands and tests run it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from front_door import KEY, app, fragments
from starlette.types import Receive, Scope, Send

from taskapp_kit.config import Settings
from taskapp_kit.errors import ConfigError
from taskapp_kit.serve.answer import json_answer
from taskapp_kit.serve.app import create
from taskapp_kit.serve.runner import BackgroundServer, bind
from taskapp_kit.service import Service


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
    with pytest.raises(ConfigError, match="no address here"):
        bind("256.0.0.1.invalid", 0)


def test_an_app_that_does_not_start_is_an_error() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.failed", "message": "no"})

    with pytest.raises(RuntimeError, match="did not start"), BackgroundServer(broken):
        raise AssertionError


def test_running_requests_are_finished_before_it_stops() -> None:
    import asyncio

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await asyncio.sleep(0.4)
            await json_answer({"ok": True})(scope, receive, send)

    server = BackgroundServer(slow)
    server.start()
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(httpx.get(server.url).status_code))
    thread.start()
    time.sleep(0.15)
    server.stop()
    thread.join()
    assert found == [200]


SERVED = """
import sys
from taskapp_kit import Step, TaskApp, action
from taskapp_kit.asgi import build
from taskapp_kit.config import from_environment
from taskapp_kit.serve.runner import run
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
