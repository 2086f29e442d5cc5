"""Rollouts that are repeated, followed and fetched later, over HTTP: in threads and in a worker, with a store and without."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.records.events import KINDS, fold, from_json
from taskapp_kit.store import open_store
from taskapp_kit.wire.rollout import RolloutResponse
from tests.live_app import SECRET, a_body, marks
from tests.serve.running_server import ALIAS, KEY, RunningServer, error_of, opened
from tests.stress.server import Server, stored
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.server]

FILE = Path(__file__).parent.parent / "live_app.py"
APP = find_app(str(FILE))
SETTINGS = Settings(environment_api_key=KEY, environment_api_key_aliases=(ALIAS,), grace_seconds=1)
ASYNC = {"Prefer": "respond-async"}
STREAM = {"Accept": "text/event-stream"}
ROUTE = "/rollout"


@dataclass
class Served:
    """A running server; `file` is that of its store, None without one."""

    running: RunningServer
    file: Path | None
    workers: int

    @property
    def client(self) -> httpx.Client:
        return self.running.client

    def post(self, body: dict[str, Any], **headers: str) -> httpx.Response:
        return self.client.post(ROUTE, json=body, headers=headers)

    def post_async(self, body: dict[str, Any]) -> str:
        """The path of a rollout that was taken."""
        response = self.post(body, **ASYNC)
        assert response.status_code == 202, response.text
        return response.headers["location"]

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.client.get(path, headers=headers)

    def ended(self, path: str) -> httpx.Response:
        """The answer when it is over."""
        response = self.get(path, Prefer="wait=20")
        assert response.status_code != 202
        return response


@contextmanager
def serving(file: Path | None, workers: int) -> Iterator[Served]:
    store = None if file is None else open_store(f"sqlite:///{file}")
    with opened(SETTINGS, store=store, workers=workers, serves=APP, max_concurrent=256) as running:
        yield Served(running, file, workers)


KINDS_OF_SERVER = [(0, False), (0, True), (1, False), (1, True)]
NAMES = ["threads", "threads+store", "worker", "worker+store"]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int, bool], Served]]:
    """Workers, and whether it has a store -> a server, started when it is first asked for."""
    folder = tmp_path_factory.mktemp("servers")
    with ExitStack() as stack:

        @cache
        def server(workers: int, keeps: bool) -> Served:
            return stack.enter_context(serving(folder / f"{workers}.db" if keeps else None, workers))

        yield server


@pytest.fixture(params=KINDS_OF_SERVER, ids=NAMES)
def every(request: pytest.FixtureRequest, servers: Callable[[int, bool], Served]) -> Served:
    """Each of the four kinds."""
    return servers(*request.param)


@pytest.fixture(params=KINDS_OF_SERVER[::3], ids=NAMES[::3])
def either(request: pytest.FixtureRequest, servers: Callable[[int, bool], Served]) -> Served:
    """For what does not depend on both, threads and store."""
    return servers(*request.param)


# -- frames --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frame:
    """One server-sent event."""

    number: int
    kind: str
    data: Any


class Following:
    """A stream that is open; `read(k)` reads k frames, `rest()` all that is left."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.iter_lines()

    def read(self, count: int) -> list[Frame]:
        found: list[Frame] = []
        part: dict[str, str] = {}
        while len(found) < count:
            line = next(self._lines, None)
            if line is None:
                assert not part, "the stream ends between two frames"
                break
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                part[name] = value
            elif part:
                assert list(part) == ["id", "event", "data"]
                found.append(Frame(int(part["id"]), part["event"], json.loads(part["data"])))
                part = {}
        return found

    def rest(self) -> list[Frame]:
        return self.read(10**9)


@contextmanager
def following(every: Served, path: str = ROUTE, body: Any = None, **headers: str) -> Iterator[Following]:
    verb = "GET" if body is None else "POST"
    with every.client.stream(verb, path, json=body, headers={**STREAM, **headers}) as response:
        if response.status_code == 200:
            assert response.headers["content-type"].startswith("text/event-stream")
        yield Following(response)


def followed(every: Served, path: str = ROUTE, body: Any = None, **headers: str) -> list[Frame]:
    """A whole stream."""
    with following(every, path, body, **headers) as stream:
        assert stream.response.status_code == 200
        return stream.rest()


def well_formed(frames: list[Frame]) -> None:
    assert [frame.number for frame in frames] == list(range(len(frames)))
    *events, last = frames
    assert last.kind in ("result", "failure")
    for frame in events:
        assert frame.kind in KINDS
        assert (frame.data["kind"], frame.data["seq"], frame.data["v"]) == (frame.kind, frame.number, 1)
    assert SECRET not in json.dumps([frame.data for frame in frames])


def as_stored(every: Served, frames: list[Frame], rollout_id: str) -> None:
    """The stream, the store and the stream afterwards are the same."""
    *events, last = frames
    if every.file is not None:
        assert list(stored(every.file, rollout_id).events) == [frame.data for frame in events]
    again = followed(every, f"/rollouts/{rollout_id}")
    assert again[:-1] == events
    assert again[-1] == last


# -- Idempotency-Key -----------------------------------------------------------------------------------------------


def test_the_same_json_in_other_words_is_the_same_body_and_another_is_409(either: Served) -> None:
    headers, body = {"Idempotency-Key": "in-other-words"}, a_body(seed=3)
    first = either.post(body, **headers)
    words = json.dumps(dict(reversed(body.items())), indent=3, ensure_ascii=True)
    second = either.client.post(ROUTE, content=words, headers={**headers, "Content-Type": "application/json"})
    assert (second.status_code, second.content) == (200, first.content)
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"
    refused = either.post(a_body(seed=5), **headers)
    assert (refused.status_code, error_of(refused)["code"]) == (409, "idempotency_key_reused")


# -- Prefer: respond-async -----------------------------------------------------------------------------------------


@pytest.mark.server
def test_respond_async_result_can_be_fetched_later(every: Served, tmp_path: Path) -> None:
    began = time.time()
    taken = every.post(a_body(gate=tmp_path / "gate"), **ASYNC)
    assert taken.status_code == 202
    assert taken.headers["preference-applied"] == "respond-async"
    path, told = taken.headers["location"], taken.json()
    assert path == told["url"] == f"/rollouts/{told['rollout_id']}"
    assert told["status"] == "running"
    assert began - 1 < told["created_at"] < time.time() + 1
    pending = every.get(path)
    assert pending.status_code == 202
    assert (pending.headers["retry-after"], pending.headers["location"]) == ("1", path)
    assert pending.json()["rollout_id"] == told["rollout_id"]
    assert every.get(path, Prefer="wait=1").status_code == 202
    (tmp_path / "gate").touch()
    answer = every.ended(path)
    assert answer.status_code == 200
    plain = every.post(a_body(gate=tmp_path / "gate"))
    assert set(answer.json()) == set(plain.json())
    RolloutResponse.model_validate_json(answer.content)
    assert answer.json()["rollout_id"] == told["rollout_id"]
    assert answer.json()["digest"] == plain.json()["digest"]
    again = every.get(path)
    assert again.content == answer.content
    assert "idempotent-replayed" not in again.headers, "a GET repeats nothing"


def test_wait_preference_returns_a_quick_rollout_immediately(either: Served) -> None:
    response = either.post(a_body(), Prefer="respond-async, wait=5")
    assert response.status_code == 200
    assert either.get(f"/rollouts/{response.json()['rollout_id']}").content == response.content


def test_constructor_error_of_an_async_rollout_returns_422(either: Served) -> None:
    path = either.post_async(a_body(breaks="config"))
    response = either.ended(path)
    assert response.status_code == 422
    assert either.get(path).status_code == 422
    assert either.post(a_body(breaks="config"), Prefer="respond-async, wait=5").status_code == 422
    assert either.post(a_body(seed=1000), **ASYNC).status_code == 422, "what can be seen before is told at once"


@pytest.mark.parametrize("name", ["0" * 32, "x", "A" * 32, "0" * 33, "%2e%2e", "0" * 31 + "%0a", "\u0661" * 32])
def test_unknown_rollout_id_returns_404(either: Served, name: str) -> None:
    for verb in ("GET", "DELETE"):
        response = either.client.request(verb, f"/rollouts/{name}")
        assert response.status_code == 404
        assert error_of(response)["code"] == "not_found"


def test_plain_rollout_is_not_shared(either: Served) -> None:
    response = either.post(a_body())
    assert response.status_code == 200
    assert not {"location", "idempotent-replayed", "preference-applied"} & set(response.headers)
    later = either.get(f"/rollouts/{response.json()['rollout_id']}")
    assert later.status_code == (404 if either.file is None else 200), "it is found where it is stored"


@pytest.mark.server
def test_a_rollout_can_be_cancelled(every: Served, tmp_path: Path) -> None:
    path = every.post_async(a_body(gate=tmp_path / "gate", mark=tmp_path / "mark"))
    until(lambda: marks(tmp_path / "mark", "waiting"))
    cancelled = every.client.delete(path)
    assert cancelled.json() == {"rollout_id": path[-32:], "status": "cancelled"}
    assert every.client.delete(path).json() == {"rollout_id": path[-32:], "status": "ended"}
    response = every.get(path)
    assert response.status_code == 503
    error = error_of(response)
    assert (error["boundary"], error["code"]) == ("cancelled", "cancelled")
    assert error_of(every.get(path)) == error
    if every.file is not None:
        row = stored(every.file, path[-32:])
        assert (row.status, row.failure["boundary"]) == ("failed", "cancelled")
        assert row.failure["error_id"] == error["error_id"]
        assert row.events[-1]["kind"] == "failed"
    (tmp_path / "gate").touch()
    until(lambda: marks(tmp_path / "mark", "close"))


# -- streams -------------------------------------------------------------------------------------------------------


@pytest.mark.server
def test_a_stream_is_the_events_and_then_the_answer(every: Served) -> None:
    with following(every, body=a_body(seed=2, steps=5)) as stream:
        path = stream.response.headers["location"]
        frames = stream.rest()
    well_formed(frames)
    answer = frames[-1].data
    assert frames[-1].kind == "result"
    RolloutResponse.model_validate(answer)
    assert path == f"/rollouts/{answer['rollout_id']}"
    assert [frame.kind for frame in frames[:2]] == ["started", "observed"]
    assert [frame.kind for frame in frames].count("stepped") == 5
    trajectory = fold(from_json(frame.data) for frame in frames[:-1])
    trajectory.final_state = {"private": SECRET}  # which no event tells
    assert trajectory.digest() == answer["digest"]
    as_stored(every, frames, answer["rollout_id"])
    assert every.get(path).json() == answer


WAITING = 13
"""Events of a rollout that waits in its third step: started, observed, two turns of four, called, answered, acted."""


@pytest.mark.ci(keep=8)
@pytest.mark.server
@pytest.mark.parametrize("how", ["GET", "POST"])
@pytest.mark.parametrize("cut", [0, 1, 6, WAITING])
def test_interrupted_stream_resumes_at_the_last_event(every: Served, tmp_path: Path, how: str, cut: int) -> None:
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    body = a_body(gate=tmp_path / "gate", at=2, steps=4, mark=tmp_path / "mark")
    with following(every, body=body, **headers) as stream:
        path = stream.response.headers["location"]
        frames = stream.read(cut)
    last = {"Last-Event-ID": str(cut - 1)} if cut else {}
    with following(every, path if how == "GET" else ROUTE, None if how == "GET" else body, **headers, **last) as stream:
        assert stream.response.headers["location"] == path
        frames += stream.read(WAITING - cut)
        (tmp_path / "gate").touch()
        frames += stream.rest()
    well_formed(frames)
    assert frames[-1].kind == "result"
    assert marks(tmp_path / "mark", "reset") == 1
    as_stored(every, frames, frames[-1].data["rollout_id"])
    for first in range(len(frames)):
        after = {"Last-Event-ID": str(first - 1)} if first else {}
        assert followed(every, path, **after) == frames[first:]
    assert followed(every, ROUTE, body, **headers, **last) == frames[cut:]
    for nothing in (len(frames) - 1, len(frames), 10**8):
        assert every.get(path, **STREAM, **{"Last-Event-ID": str(nothing)}).status_code == 204


@pytest.mark.ci(keep=8)
@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"breaks": "reset"}, "environment_raised"),
        ({"breaks": "step"}, "environment_raised"),
        ({"breaks": "rubric"}, "criterion_failed"),
        ({"slow": 0.05, "steps": 90, "safety": {"max_time_s": 0.3}}, "deadline"),
        ({"gate": "gate", "safety": {"max_time_s": 0.3}}, "hung"),
        ({"gate": "gate"}, "cancelled"),
    ],
    ids=["reset", "step", "rubric", "deadline", "hangs", "cancelled"],
)
def test_a_failure_ends_its_stream_and_is_stored_so(
    every: Served, tmp_path: Path, config: dict[str, Any], code: str
) -> None:
    if "gate" in config:
        config = {**config, "gate": tmp_path / "gate"}
    with following(every, body=a_body(**config)) as stream:
        path = stream.response.headers["location"]
        frames = stream.read(9 if code == "cancelled" else 0)
        if code == "cancelled":
            assert every.client.delete(path).json()["status"] == "cancelled"
        frames += stream.rest()
    (tmp_path / "gate").touch()
    well_formed(frames)
    assert frames[-1].kind == "failure"
    error = frames[-1].data["detail"]["error"]
    assert error["code"] == code or (code, error["boundary"]) == ("hung", "timeout")
    assert error == error_of(every.get(path))
    failed = [frame.data for frame in frames if frame.kind == "failed"]
    assert [event["error_id"] for event in failed] == ([] if code == "criterion_failed" else [error["error_id"]])
    as_stored(every, frames, path[-32:])


def test_rollout_that_cannot_begin_is_an_error_and_not_a_stream(either: Served) -> None:
    for body in (a_body(seed=1000), {**a_body(), "mode": "?"}):
        response = either.post(body, **STREAM)
        assert response.status_code == 422
        assert error_of(response)["fields"]
    for header in ({"Last-Event-ID": "x"}, {"Idempotency-Key": "a b"}):
        assert error_of(either.post(a_body(), **STREAM, **header))["code"] == "invalid_header"


# -- servers of their own ------------------------------------------------------------------------------------------


def test_rollout_of_a_killed_server_returns_server_died(tmp_path: Path) -> None:
    body = a_body(gate=tmp_path / "gate", mark=tmp_path / "mark")
    with Server(tmp_path / "server", app=FILE) as killed:
        headers = {**killed.headers, **ASYNC, "Idempotency-Key": "k"}
        path = httpx.post(killed.url + ROUTE, json=body, headers=headers, timeout=20).headers["location"]
        until(lambda: marks(tmp_path / "mark", "waiting") == 1)
        with serving(killed.store, 0) as other:
            assert other.get(path).status_code == 202
            refused = other.client.delete(path)
            assert (refused.status_code, error_of(refused)["code"]) == (409, "rollout_elsewhere")
            killed.kill()
            lost = other.ended(path)
            error = error_of(lost)
            assert (lost.status_code, error["boundary"], error["code"]) == (503, "cancelled", "server_died")
            assert [frame.kind for frame in followed(other, path)] == ["failure"]
            (tmp_path / "gate").touch()
            assert other.post(body, **{"Idempotency-Key": "k"}).status_code == 200
            assert marks(tmp_path / "mark", "reset") == 2
