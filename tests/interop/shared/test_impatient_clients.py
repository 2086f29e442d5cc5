"""Clients of every protocol that repeat, close or leave while an episode is scored; and those that send many calls at once."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from taskapp_kit import Step, TaskApp, action
from taskapp_kit.config import Settings
from taskapp_kit.interop.call_queue import MAX_WAITING
from taskapp_kit.serve.connection_limits import UNREAD, ConnectionLimits
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from taskapp_kit.store import open_store
from tests.interop.shared.protocol_clients import ByMcp, ByNemo, ByOpenEnv, ByOrs, BySessions, ProtocolClient
from tests.serve.running_server import KEY, RunningServer, error_of, opened
from tests.waiting import until

pytestmark = pytest.mark.server

SETTINGS = Settings(environment_api_key=KEY, protocols=("all",), grace_seconds=0, ui=True)
PLAY, SCORE = threading.Event(), threading.Event()
STARTED, SCORING = threading.Semaphore(0), threading.Semaphore(0)
DONE: list[int] = []

app = TaskApp("patient", version="1.0.0")


@app.environment("patient", splits={"train": range(100)}, max_steps=100)
class Patient:
    """Waits."""

    def reset(self, seed: int) -> str:
        return "go"

    @action
    def go(self, number: int = 0, end: bool = False) -> Step:
        """Go."""
        STARTED.release()
        PLAY.wait(30)
        DONE.append(number)
        return Step("went", reward=1.0, terminated=end)


@app.rubric
def judged() -> float:
    """Take as long as a judge."""
    SCORING.release()
    SCORE.wait(30)
    return 1.0


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningServer]:
    DONE.clear()
    PLAY.set()
    SCORE.clear()
    while SCORING.acquire(blocking=False) or STARTED.acquire(blocking=False):
        pass
    with opened(SETTINGS, serves=app, store=open_store(str(tmp_path / "s.db"))) as running:
        yield running
        PLAY.set()
        SCORE.set()


class ByOpenEnvSocket(ProtocolClient):
    def begin(self) -> None:
        url = str(self.web.base_url).rstrip("/").replace("http", "ws", 1) + "/openenv/patient/ws"
        self.wire = connect(url, additional_headers={"X-API-Key": KEY})
        self.wire.send(json.dumps({"type": "reset", "data": {"seed": 1}}))
        self.wire.recv(20)

    def end(self) -> None:
        self.wire.send(json.dumps({"type": "step", "data": {"end": True}}))

    def leave(self) -> Any:
        self.wire.socket.close()


class ByViewer(ProtocolClient):
    address = "/ui/play/0123456789abcdef"

    def begin(self) -> None:
        form = {"environment": "patient", "sitting": "0123456789abcdef", "split": "train", "seed": "1"}
        begun = self.web.post("/ui/environment", data=form, follow_redirects=True)
        assert begun.status_code == 200, begun.text
        found = None
        while found is None:  # the page asks again until the episode has begun
            found = re.search(r'name="at" value="([^"]*)"', self.web.get(self.address).text)
        self.at = found[1]

    def end(self) -> httpx.Response:
        return self.web.post(self.address, data={"at": self.at, "do": "finish"})

    def leave(self) -> Any:
        return self.web.post(self.address, data={"at": self.at, "do": "close"})


ALL = [BySessions, ByOpenEnv, ByOpenEnvSocket, ByOrs, ByMcp, ByNemo, ByViewer]


@pytest.mark.ci(keep=3)
@pytest.mark.parametrize("kind", ALL)
def test_closing_during_scoring_does_not_lose_the_episode(running: RunningServer, kind: Any) -> None:
    client = kind(running.client, "patient")
    client.begin()
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(client.end)
        assert SCORING.acquire(timeout=30)
        repeated = None if kind is ByOpenEnvSocket else pool.submit(client.end)
        left = [pool.submit(client.leave)]
        until(lambda: kind in (ByOpenEnvSocket, ByMcp, ByNemo) or _closing(running), 20, "it is closed")
        SCORE.set()
        answers = [item.result(60) for item in (first, repeated, *left) if item is not None]
    # a socket gets no confirmation: its episode is stored some time later
    rows = until(lambda: running.client.get("/rollouts").json()["rollouts"], 20, "the rollout is stored")
    assert [(row["status"], row["reward"]) for row in rows] in ([("terminated", 1.0)], [("truncated", 1.0)])
    if kind is ByNemo:
        assert len({answer.text for answer in [*answers, client.end()]}) == 1 and answers[0].json()["reward"] == 1.0
        client.headers["X-API-Key"] = "wrong"
        assert client.end().status_code == 401


def _closing(running: RunningServer) -> bool:
    return all(session.closed for session in running.service.sessions.listed())


def test_verify_during_a_call_does_not_end_the_episode(running: RunningServer) -> None:
    client = ByNemo(running.client, "patient")
    client.begin()
    PLAY.clear()
    SCORE.set()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.post, "/nemo/patient/go", {})
        assert STARTED.acquire(timeout=30)
        early = client.end()
        assert early.status_code == 409 and error_of(early)["code"] == "session_busy"
        PLAY.set()
        assert call.result(60).text == "went"
    assert client.end().json()["taskapp"]["length"] == 1


@pytest.mark.parametrize("kind", [ByOrs, ByMcp])
def test_queue_of_a_session_is_bounded_and_drops_calls_of_disconnected_clients(
    running: RunningServer, kind: Any
) -> None:
    client = kind(running.client, "patient")
    client.begin()
    PLAY.clear()
    SCORE.set()
    with ThreadPoolExecutor(MAX_WAITING + 3) as pool:
        first = pool.submit(client.call, number=1)
        assert STARTED.acquire(timeout=30)
        for _ in range(2 * MAX_WAITING):
            _hang_up(running, client, number=2)
        calls = [pool.submit(client.call, number=3) for _ in range(MAX_WAITING + 1)]
        until(lambda: any(call.done() for call in calls), 30, "one too many is refused")
        PLAY.set()
        assert first.result(60).status_code == 200
        texts = [call.result(60).text for call in calls]
    assert sum("session_busy" in text for text in texts) == 1
    assert DONE == [1] + [3] * MAX_WAITING


def _hang_up(running: RunningServer, client: Any, **args: int) -> None:
    """Send a call and close the connection, and wait until the server has seen both."""
    path, body = client.request("go", args)
    data = json.dumps(body).encode()
    headers = {"Host": "a", "X-API-Key": KEY, "Content-Type": "application/json", "Content-Length": str(len(data))}
    head = "".join(f"{name}: {value}\r\n" for name, value in {**headers, **client.headers}.items())
    with socket.create_connection((running.server.host, running.server.port)) as wire:
        wire.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + data)
    client.web.get("/health")


def test_repeated_requests_of_a_call_are_bounded(running: RunningServer) -> None:
    client = BySessions(running.client, "patient")
    client.begin()
    with ThreadPoolExecutor(20) as pool:
        calls = [pool.submit(client.end) for _ in range(20)]
        until(lambda: sum(call.done() for call in calls) == 12, 30, "the others are refused")
        SCORE.set()
        answers = [call.result(60) for call in calls]
    assert sorted(answer.status_code for answer in answers) == [200] * 8 + [409] * 12


@pytest.mark.parametrize("role", ["policy", "control"])
def test_session_of_a_policy_accepts_only_its_own_protocol(running: RunningServer, role: str) -> None:
    SCORE.set()
    client = ByMcp(running.client, "patient")
    client.role = role
    client.begin()
    session = client.headers["Mcp-Session-Id"]
    found = 404 if role == "policy" else 200
    for verb, body in (("step", {"tool": "go"}), ("finish", {}), ("reset", {"seed": 1})):
        assert client.web.post(f"/sessions/{session}/{verb}", json=body).status_code == found
    for path in ("state", "reset"):
        answer = client.web.request(
            "GET" if path == "state" else "POST", f"/openenv/patient/{path}", headers={"X-Session-ID": session}
        )
        assert answer.status_code == found
    client.web.cookies.set("taskapp_session", session)
    assert ("_ng_failure_class" in client.post("/nemo/patient/verify").json()) is (role == "policy")
    if role == "policy":
        assert client.web.get(f"/sessions/{session}").json()["turn"] == 0
        assert "went" in client.call().text


def test_unread_messages_of_sockets_share_one_limit() -> None:
    async def silent(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            while (await receive())["type"] == "websocket.receive":
                await send({"type": "websocket.send", "text": "taken"})

    limits = ConnectionLimits(max_buffered_bytes=3_000_000)
    with BackgroundServer(silent, limits=limits) as server:
        url = server.url.replace("http", "ws", 1)
        with connect(url) as small:
            large = [connect(url) for _ in range(4)]
            for wire in large:
                head = bytes([0x01, 0xFE]) + (60_000).to_bytes(2, "big") + bytes(4)
                for _ in range(17):
                    wire.socket.sendall(head + bytes(60_000))
                    head = bytes([0x00]) + head[1:]
            connections = server._server.config.http.args[0]  # type: ignore[union-attr]
            until(lambda: connections.ended[UNREAD] == 2, 20, "those with the most end")
            small.send("x" * 500_000)
            assert small.recv(20) == "taken"


@pytest.mark.ci
def test_socket_with_unread_pongs_is_not_read_further() -> None:
    async def silent(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await receive()

    asked = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    pings = (bytes([0x89, 0xFD]) + bytes(4 + 125)) * 1000
    with BackgroundServer(silent) as server, socket.create_connection(("127.0.0.1", server.port), 20) as client:
        client.sendall(f"{asked}Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode())
        assert client.recv(1024).startswith(b"HTTP/1.1 101")
        client.settimeout(2)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 64_000_000:
                sent += client.send(pings[sent % len(pings) :])
        more = sent + 1_000_000
        while sent < more:  # the client reads, and the server reads again
            client.settimeout(20)
            client.recv(2**20)
            client.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                sent += client.send(pings[sent % len(pings) :])
