"""The WebSocket of a session: the same answers as the routes, in order, and what a hostile or unlucky client cannot do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.serve import key_file
from taskapp_kit.store import open_store
from tests import live_app
from tests.serve.running_server import KEY, RunningServer, opened
from tests.waiting import until

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    store = open_store(str(tmp_path_factory.mktemp("socket") / "s.db"))
    with opened(store=store, serves=find_app(live_app.__file__), max_concurrent=400) as running:
        yield running


def a_session(running: RunningServer) -> str:
    session_id: str = running.client.post("/sessions").json()["session_id"]
    return session_id


def socket(running: RunningServer, session_id: str, key: str | None = KEY) -> ClientConnection:
    url = f"{running.url.replace('http', 'ws')}/sessions/{session_id}/socket"
    return connect(url, additional_headers={} if key is None else {"X-API-Key": key}, max_size=None)


def ask(wire: ClientConnection, kind: str, frame_id: Any = 1, **data: Any) -> Any:
    wire.send(json.dumps({"type": kind, "id": frame_id, "data": data}))
    answer = json.loads(wire.recv(20))
    assert answer["id"] == frame_id
    return answer


def test_an_episode_over_a_socket(live: RunningServer) -> None:
    session_id = a_session(live)
    with socket(live, session_id) as wire:
        assert ask(wire, "step", tool="go")["error"]["code"] == "no_episode"
        start = ask(wire, "reset", "first", seed=3)
        assert (start["type"], start["data"]["observation"]) == ("reset", {"text": "seed 3, number 0, ü"})
        for number in range(30):  # frames that are sent without waiting are answered in their order
            wire.send(json.dumps({"type": "state" if number % 2 else "step", "id": number, "data": {}}))
        answers = [json.loads(wire.recv(20)) for _ in range(30)]
        assert [answer["id"] for answer in answers] == list(range(30))
        assert {answer.get("error", {}).get("code") for answer in answers} == {None, "invalid_request"}
        steps = [ask(wire, "step", tool="go")["data"] for _ in range(3)]
        assert [step["done"] for step in steps] == [False, False, True] and steps[-1]["reward"] == 1.0
        assert ask(wire, "finish")["data"]["episode"] == steps[-1]["episode"]
        assert ask(wire, "state")["data"]["state"] == "over"
        assert ask(wire, "close")["data"]["state"] == "closed"
        with pytest.raises(ConnectionClosed) as closed:
            wire.recv(20)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1000


@pytest.mark.parametrize(
    "frame,code",
    [
        ("", "invalid_json"),
        ("[]", "invalid_json"),
        ('{"type": "step", "type": "step"}', "invalid_json"),
        (b'{"type": "state"}', "invalid_json"),
        ("{}", "invalid_request"),
        ('{"type": "open"}', "invalid_request"),
        ('{"type": "step", "data": []}', "invalid_request"),
        ('{"type": "step", "id": {}}', "invalid_request"),
        ('{"type": "reset", "data": {"seed": -1}}', "invalid_request"),
        ('{"type": "state", "data": {"x": "' + "y" * 5_000_000 + '"}}', "body_too_large"),
    ],
)
def test_invalid_frame_returns_an_error_and_keeps_the_socket_open(
    live: RunningServer, frame: str | bytes, code: str
) -> None:
    session_id = a_session(live)
    with socket(live, session_id) as wire:
        wire.send(frame)
        answer = json.loads(wire.recv(20))
        assert (answer["type"], answer["error"]["code"]) == ("error", code) and answer["status"] in (413, 422)
        assert ask(wire, "close")["data"]["state"] == "closed"


def test_answer_of_a_dropped_socket_can_be_fetched_again(live: RunningServer, tmp_path: Path) -> None:
    session_id, gate, mark = a_session(live), tmp_path / "gate", tmp_path / "mark"
    with socket(live, session_id) as wire:
        ask(wire, "reset", seed=0, config={"gate": str(gate), "at": 0, "mark": str(mark)})
        wire.send(json.dumps({"type": "step", "data": {"tool": "go", "request_id": "s1"}}))
        until(lambda: live_app.marks(mark, "waiting"), 20)
        wire.socket.close()
    gate.touch()
    with socket(live, session_id) as wire:
        step = ask(wire, "step", tool="go", request_id="s1")["data"]
        assert (step["turn"], step["observation"]) == (1, {"text": "seed 0, number 1, ü"})
        ask(wire, "close")
    until(lambda: live_app.marks(mark, "close") == 1, 20)


def test_second_socket_replaces_the_first(live: RunningServer) -> None:
    session_id = a_session(live)
    with socket(live, session_id) as first, socket(live, session_id) as second:
        assert ask(second, "state")["data"]["state"] == "open"
        with pytest.raises(ConnectionClosed) as closed:
            first.recv(20)
        assert closed.value.rcvd is not None and closed.value.rcvd.reason == "replaced"
        ask(second, "close")


def test_a_socket_needs_the_key_that_opened_its_session(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    for who in ("alice", "bob"):
        key_file.add(file, who, f"{who}-key-7a1d")
    with opened(Settings(environment_api_key=KEY, keys_file=file)) as running:
        headers = {"X-API-Key": "alice-key-7a1d"}
        session_id = running.stranger.post("/sessions", headers=headers).json()["session_id"]
        for key in (None, "wrong"):
            with pytest.raises(InvalidStatus) as refused:
                socket(running, session_id, key)
            assert refused.value.response.status_code == 403
        with socket(running, session_id, "bob-key-7a1d") as wire:
            assert json.loads(wire.recv(20))["error"]["code"] == "session_not_found"
            with pytest.raises(ConnectionClosed):
                wire.recv(20)
        with socket(running, session_id, "alice-key-7a1d") as wire:
            ask(wire, "reset", seed=0)
            key_file.remove(file, "alice")
            with pytest.raises(ConnectionClosed) as ended:
                wire.recv(20)
            assert ended.value.rcvd is not None and ended.value.rcvd.reason == "key_revoked"
        assert len(running.service.sessions) == running.service.in_flight == 0
