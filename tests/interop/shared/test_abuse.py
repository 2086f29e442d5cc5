"""Callers of every protocol that leave, break off, flood, or lose their right: no environment and no memory stays behind."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from taskapp_kit import Step, TaskApp, action
from taskapp_kit.config import Settings
from taskapp_kit.serve import key_file
from tests.interop.shared.protocol_clients import BY_HTTP, socket_to
from tests.serve.load_test import held
from tests.serve.running_server import KEY, RunningServer, opened
from tests.waiting import until

pytestmark = pytest.mark.server

app = TaskApp("crowd", version="1.0.0")
ALICE = {"X-API-Key": "alice-key-7a1d"}
BIG = 20_000_000
GROWTH = 15 * 2**20
COUNTS = {"reset": 0, "closed": 0}


@app.environment("crowd", splits={"train": range(1000)}, max_steps=100_000, max_turns=100_000)
class Crowd:
    """Counts who comes and who leaves."""

    def reset(self, seed: int) -> str:
        COUNTS["reset"] += 1
        self.room = bytearray(20_000)
        return f"seed {seed}"

    @action
    def go(self, size: int = 2) -> Step:
        """Go."""
        return Step("x" * size, reward=0.0)

    def close(self) -> None:
        COUNTS["closed"] += 1


@app.environment("slow", splits={"train": range(1000)})
class Slow(Crowd):
    """Takes its time."""

    @action
    def go(self) -> Step:  # type: ignore[override]
        """Go."""
        time.sleep(0.2)
        return Step("went", reward=0.0)


def session_socket(running: RunningServer, environment: str = "crowd") -> ClientConnection:
    session = running.client.post("/sessions", json={"env_name": environment}).json()["session_id"]
    return socket_to(running, f"/sessions/{session}/socket")


def openenv_socket(running: RunningServer, environment: str = "crowd") -> ClientConnection:
    return socket_to(running, f"/openenv/{environment}/ws")


def frame(kind: str, **data: Any) -> str:
    return json.dumps({"type": kind, "data": data})


BY_SOCKET = {"sessions": (session_socket, {"tool": "go", "args": {}}), "openenv": (openenv_socket, {})}
"""How to connect, and the data of a step."""


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    settings = Settings(environment_api_key=KEY, protocols=("all",))
    with opened(settings, serves=app, max_concurrent=400) as found:
        yield found


def expired(running: RunningServer) -> None:
    """Wait until all sessions have expired, as if their idle time had passed."""
    sessions = running.service.sessions
    idle, sessions.idle_seconds = sessions.idle_seconds, 0.0
    until(lambda: len(sessions) == 0, 60, "all sessions expire")
    sessions.idle_seconds = idle
    until(lambda: COUNTS["closed"] == COUNTS["reset"], 20, "every environment is closed")
    health = running.client.get("/health").json()
    assert (health["in_flight"], health["hung_threads"], health["sessions"]["open"]) == (0, 0, 0)


@pytest.mark.ci(keep=1)
@pytest.mark.parametrize("name", BY_HTTP)
@pytest.mark.parametrize("many", [40, pytest.param(250, marks=pytest.mark.exhaustive)])
def test_abandoned_sessions_are_closed(running: RunningServer, name: str, many: int) -> None:
    """Four times `many`."""
    sizes = []
    for batch in range(4):
        for seed in range(many):
            answer = BY_HTTP[name](running.client, "crowd").begin(10 + seed)
            assert answer.status_code == 200, answer.text
        assert len(running.service.sessions) == many, batch
        expired(running)
        sizes.append(held()[0])
    assert sizes[-1] - sizes[1] < GROWTH, sizes


@pytest.mark.parametrize("name", BY_SOCKET)
def test_sockets_dropped_during_a_step_end_their_sessions(running: RunningServer, name: str) -> None:
    begin, step = BY_SOCKET[name]
    for _ in range(10):
        wire = begin(running, "slow")  # left without a closing handshake, so no context manager
        wire.send(frame("reset", seed=1))
        began = json.loads(wire.recv(20))
        assert began["type"] in ("reset", "observation"), began
        wire.send(frame("step", **step))
        wire.socket.close()
    expired(running)


@pytest.mark.parametrize("name", BY_SOCKET)
def test_frames_out_of_order_and_of_20_mb_are_errors(running: RunningServer, name: str) -> None:
    begin, step = BY_SOCKET[name]
    before = held()[0]
    with begin(running) as wire:
        for kind, data in (("step", step), ("finish", {}), ("step", step), ("jump", {}), ("reset", {"seed": 1})):
            wire.send(frame(kind, **data))
        kinds = [json.loads(wire.recv(20))["type"] for _ in range(5)]
        assert kinds[:4] == ["error"] * 4 and kinds[4] in ("reset", "observation")
        with pytest.raises(ConnectionClosed):
            wire.send("x" * BIG)
            wire.recv(20)
    expired(running)
    assert held()[0] - before < 2.5 * BIG


@pytest.mark.ci
def test_bodies_of_20_mb_are_rejected_on_every_route(running: RunningServer) -> None:
    before, body = held()[0], b'{"x": "' + b"y" * BIG + b'"}'
    places = (
        "/sessions",
        "/openenv/crowd/reset",
        "/openenv/crowd/mcp",
        "/mcp",
        "/ors/crowd/task",
        "/nemo/crowd/seed_session",
    )
    for path in places:
        answer = running.client.post(path, content=body, headers={"Accept": "application/json, text/event-stream"})
        assert answer.status_code in (200, 413), (path, answer.status_code)
        assert answer.status_code == 413 or "error" in answer.json(), path
    assert len(running.service.sessions) == 0 and held()[0] - before < 2 * BIG


@pytest.mark.parametrize("name", BY_SOCKET)
def test_client_that_reads_nothing_does_not_block_the_server(running: RunningServer, name: str) -> None:
    """It asks for 400 MB of observations, and reads none."""
    begin, step = BY_SOCKET[name]
    size = 100_000
    data = {**step, "args": {"size": size}} if "args" in step else {"size": size}
    before = held()[0]
    wire = begin(running)
    wire.send(frame("reset", seed=1))
    wire.recv(20)
    wire.socket.settimeout(2)
    try:
        for _ in range(4000):
            wire.socket.sendall(_masked(frame("step", **data)))
    except TimeoutError:
        pass  # the server does not read on either
    assert held()[0] - before < 2 * GROWTH
    assert running.client.get("/health").status_code == 200
    wire.socket.close()
    expired(running)


def _masked(text: str) -> bytes:
    """A text frame as a client sends it, masked with zeros."""
    data = text.encode()
    length = bytes([0x80 | len(data)]) if len(data) < 126 else bytes([0x80 | 126, *len(data).to_bytes(2, "big")])
    return b"\x81" + length + bytes(4) + data


@pytest.mark.parametrize("name", BY_HTTP)
def test_full_server_answers_503(name: str) -> None:
    settings = Settings(environment_api_key=KEY, protocols=("all",), grace_seconds=0)
    with opened(settings, serves=app, max_concurrent=2) as full:
        full.service.sessions.queue_seconds = 0.02
        assert BY_HTTP[name](full.client, "crowd").begin().status_code == 200
        refused = BY_HTTP[name](full.client, "crowd").begin()
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
        assert refused.json()["detail"]["error"]["code"] == "saturated"
        assert len(full.service.sessions) == 1


@pytest.mark.ci(keep=1)
@pytest.mark.parametrize("name", BY_HTTP)
def test_revoked_key_ends_its_sessions(name: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    key_file.add(file, "alice", ALICE["X-API-Key"])
    settings = Settings(environment_api_key=KEY, keys_file=file, protocols=("all",))
    with opened(settings, serves=app) as shared, httpx.Client(base_url=shared.url, headers=ALICE) as alice:
        assert BY_HTTP[name](alice, "crowd").begin().status_code == 200
        key_file.remove(file, "alice")
        until(lambda: len(shared.service.sessions) == 0, 20, "the sessions of a revoked key end")
        assert BY_HTTP[name](alice, "crowd").begin().status_code == 401
    until(lambda: COUNTS["closed"] == COUNTS["reset"], 20, "every environment is closed")
