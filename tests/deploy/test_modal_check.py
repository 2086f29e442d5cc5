"""After a deploy: waiting for an answer, and one rollout, against real servers and one that is slow to come."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest

from taskapp_kit.asgi import build
from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.deploy.modal.account import ModalRefused
from taskapp_kit.deploy.modal.check import healthy, smoke
from taskapp_kit.serve.uvicorn_server import BackgroundServer

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
KEY = "a-key-for-this-test"


def server(file: str = "examples/adder.py", **settings: object) -> BackgroundServer:
    return BackgroundServer(build(find_app(str(ROOT / file)), Settings(environment_api_key=KEY, **settings)))  # type: ignore[arg-type]


def ask(url: str, key: str | None, seconds: float = 20.0) -> tuple[bool, list[str]]:
    told: list[str] = []
    return asyncio.run(healthy(url, key, seconds=seconds, report=told.append)), told


def test_an_app_that_answers_is_healthy_with_its_key_and_refuses_others() -> None:
    with server() as running:
        url = f"http://127.0.0.1:{running.port}"
        assert ask(url, KEY) == (True, [])
        assert ask(url, "another-key") == (False, [])
        assert ask(url, None) == (False, [])


@pytest.mark.ci
def test_an_app_that_is_slow_to_come_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    app = build(find_app(str(ROOT / "examples/adder.py")), Settings(environment_api_key=KEY))
    come, go = threading.Event(), threading.Event()

    def later() -> None:
        time.sleep(1.0)
        with BackgroundServer(app, port=port):
            come.set()
            go.wait(60)

    thread = threading.Thread(target=later)
    thread.start()
    try:
        known, told = ask(f"http://127.0.0.1:{port}", KEY, seconds=60)
        assert known and come.is_set() and told
    finally:
        go.set()
        thread.join(30)


@pytest.mark.ci
def test_an_app_that_never_answers_is_given_up_with_where_to_look() -> None:
    with pytest.raises(ModalRefused, match=r"http://127\.0\.0\.1:9") as caught:
        ask("http://127.0.0.1:9", KEY, seconds=0.1)
    assert "modal app logs" in caught.value.hint
    assert KEY not in str(caught.value)


def test_one_short_rollout_is_played(tmp_path: Path) -> None:
    with server(store=str(tmp_path / "rollouts.db")) as running:
        url = f"http://127.0.0.1:{running.port}"
        played = asyncio.run(smoke(url, KEY, {"policy": "random"}, environment="adder", seed=0, seconds=30))
        listed = httpx.get(f"{url}/rollouts", headers={"X-API-Key": KEY})
    assert listed.status_code == 200 and listed.json()["rollouts"] == [], "a trial is not stored"
    assert played.policy == "random" and 1 <= played.steps <= 5
    assert played.reward is not None


def test_a_rollout_that_fails_is_told_with_its_cause() -> None:
    with server() as running, pytest.raises(ModalRefused, match="unknown_policy") as caught:
        url = f"http://127.0.0.1:{running.port}"
        asyncio.run(smoke(url, KEY, {"policy": "nobody"}, environment="adder", seed=0, seconds=30))
    assert "nobody" in str(caught.value)
