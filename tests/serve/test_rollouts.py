"""Rollouts that are repeated, followed and fetched later, over HTTP: in threads and in a worker, with a store and without."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.errors import StoreError
from taskapp_kit.records.events import KINDS, fold, from_json
from taskapp_kit.records.protocols import StoredRollout
from taskapp_kit.store import open_store
from taskapp_kit.store.sqlite import SqliteStore
from taskapp_kit.wire.rollout import RolloutResponse
from tests.live_app import SECRET, a_body, marks
from tests.serve.running_server import ALIAS, KEY, RunningServer, error_of, opened, read_answer
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.server]

FILE = Path(__file__).parent.parent / "live_app.py"
APP = find_app(str(FILE))
SETTINGS = Settings(environment_api_key=KEY, environment_api_key_aliases=(ALIAS,), grace_seconds=1)
ASYNC = {"Prefer": "respond-async"}
STREAM = {"Accept": "text/event-stream"}
ROUTE = "/rollout"


@dataclass
class House:
    """A running server; `file` is that of its store, None without one."""

    running: RunningServer
    file: Path | None
    workers: int
    keys: int = 0

    @property
    def client(self) -> httpx.Client:
        return self.running.client

    def key(self) -> dict[str, str]:
        """An Idempotency-Key of one's own."""
        self.keys += 1
        return {"Idempotency-Key": f"key-{self.keys}"}

    def post(self, body: dict[str, Any], **headers: str) -> httpx.Response:
        return self.client.post(ROUTE, json=body, headers=headers)

    def post_async(self, body: dict[str, Any], prefer: str = "respond-async") -> str:
        """The path of a rollout that was taken."""
        response = self.client.post(ROUTE, json=body, headers={"Prefer": prefer})
        assert response.status_code == 202, response.text
        return response.headers["location"]

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.client.get(path, headers=headers)

    def ended(self, path: str) -> httpx.Response:
        """The answer when it is over."""
        response = self.get(path, Prefer="wait=20")
        assert response.status_code != 202
        return response

    def stored(self, rollout_id: str) -> StoredRollout | None:
        """What the store has, read by another process, so to say."""

        async def load() -> StoredRollout | None:
            store = open_store(f"sqlite:///{self.file}")
            try:
                return await store.load(rollout_id)
            finally:
                await store.close()

        return asyncio.run(load())


@contextmanager
def house(file: Path | None, workers: int) -> Iterator[House]:
    store = None if file is None else open_store(f"sqlite:///{file}")
    with opened(SETTINGS, store=store, workers=workers, serves=APP, max_concurrent=256) as running:
        yield House(running, file, workers)


class Houses:
    """Each of the four kinds, opened when it is first asked for."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._open: dict[tuple[int, bool], House] = {}

    def get(self, workers: int, keeps: bool) -> House:
        known = self._open.get((workers, keeps))
        if known is None:
            file = self._folder / f"{workers}.db" if keeps else None
            known = self._open[workers, keeps] = self._stack.enter_context(house(file, workers))
        return known


@pytest.fixture(scope="module")
def houses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Houses]:
    with ExitStack() as stack:
        yield Houses(tmp_path_factory.mktemp("houses"), stack)


KINDS_OF_HOUSE = [(0, False), (0, True), (1, False), (1, True)]
NAMES = ["threads", "threads+store", "worker", "worker+store"]


@pytest.fixture(params=KINDS_OF_HOUSE, ids=NAMES)
def here(request: pytest.FixtureRequest, houses: Houses) -> House:
    return houses.get(*request.param)


@pytest.fixture(params=KINDS_OF_HOUSE[::3], ids=NAMES[::3])
def there(request: pytest.FixtureRequest, houses: Houses) -> House:
    """For what does not depend on both, threads and store."""
    return houses.get(*request.param)


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
def following(here: House, path: str = ROUTE, body: Any = None, **headers: str) -> Iterator[Following]:
    verb = "GET" if body is None else "POST"
    with here.client.stream(verb, path, json=body, headers={**STREAM, **headers}) as response:
        if response.status_code == 200:
            assert response.headers["content-type"].startswith("text/event-stream")
        yield Following(response)


def followed(here: House, path: str = ROUTE, body: Any = None, **headers: str) -> list[Frame]:
    """A whole stream."""
    with following(here, path, body, **headers) as stream:
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


def pictures_of(frame: Frame) -> list[str]:
    part = frame.data["step"] if frame.kind == "stepped" else frame.data
    shown = part.get("observation", [])
    return [block["image"] for block in shown if isinstance(block, dict)] if isinstance(shown, list) else []


def as_stored(here: House, frames: list[Frame], rollout_id: str) -> None:
    """The stream, the store and the stream afterwards are the same."""
    *events, last = frames
    if here.file is not None:
        stored = here.stored(rollout_id)
        assert stored is not None
        assert list(stored.events) == [frame.data for frame in events]
    again = followed(here, f"/rollouts/{rollout_id}")
    assert again[:-1] == events
    assert again[-1] == last


# -- Idempotency-Key -----------------------------------------------------------------------------------------------


@pytest.mark.ci(keep=1)
@pytest.mark.server
def test_a_hundred_at_once_with_one_key_are_one_episode(here: House, tmp_path: Path) -> None:
    body, headers = a_body(mark=tmp_path / "mark", slow=0.05), here.key()

    async def all_at_once() -> list[tuple[int, bytes]]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(here.running.url, headers={"X-API-Key": KEY}, connector=connector) as client:

            async def one() -> tuple[int, bytes]:
                async with client.post(ROUTE, json=body, headers=headers) as answer:
                    return answer.status, await answer.read()

            return list(await asyncio.gather(*(one() for _ in range(100))))

    answers = asyncio.run(all_at_once())
    assert {status for status, _ in answers} == {200}
    assert len({answer for _, answer in answers}) == 1
    RolloutResponse.model_validate_json(answers[0][1])
    assert marks(tmp_path / "mark", "reset") == 1
    again = here.post(body, **headers)
    assert again.headers["idempotent-replayed"] == "true"
    assert again.content == answers[0][1]
    assert marks(tmp_path / "mark", "reset") == 1


def test_another_body_is_409_while_it_runs_and_afterwards(there: House, tmp_path: Path) -> None:
    headers = there.key()
    body = a_body(gate=tmp_path / "gate", mark=tmp_path / "mark")
    first: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: first.append(there.post(body, **headers)))
    thread.start()
    until(lambda: marks(tmp_path / "mark", "waiting"))
    refused = there.post(a_body(seed=5), **headers)
    (tmp_path / "gate").touch()
    thread.join()
    for response in (refused, there.post(a_body(seed=5), **headers)):
        assert response.status_code == 409
        assert error_of(response)["code"] == "idempotency_key_reused"
    assert first[0].status_code == 200
    assert "idempotent-replayed" not in first[0].headers
    assert there.post(body, **headers).content == first[0].content


def test_the_same_json_in_other_words_is_the_same_body(there: House) -> None:
    headers, body = there.key(), a_body(seed=3)
    first = there.post(body, **headers)
    words = json.dumps(dict(reversed(body.items())), indent=3, ensure_ascii=True)
    second = there.client.post(ROUTE, content=words, headers={**headers, "Content-Type": "application/json"})
    assert second.status_code == 200
    assert second.content == first.content


@pytest.mark.server
def test_a_failure_is_repeated_as_that_failure(here: House, tmp_path: Path) -> None:
    headers, body = here.key(), a_body(breaks="step", mark=tmp_path / "mark")
    first, second = here.post(body, **headers), here.post(body, **headers)
    assert first.status_code == second.status_code == 500
    assert error_of(first) == error_of(second)
    assert error_of(first)["boundary"] == "environment"
    assert error_of(first)["error_id"] and error_of(first)["rollout_id"]
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"
    assert marks(tmp_path / "mark", "reset") == 1


@pytest.mark.parametrize("wrong", [{"seed": 100}, {"breaks": "config"}, {"colour": "red"}], ids=str)
def test_a_refused_request_may_be_mended_under_the_same_key(there: House, wrong: dict[str, Any]) -> None:
    headers = there.key()
    assert there.post(a_body(**wrong), **headers).status_code == 422
    assert there.post(a_body(**wrong), **headers).status_code == 422
    assert there.post(a_body(), **headers).status_code == 200


def test_who_went_away_and_repeats_has_it_played_anew(there: House, tmp_path: Path) -> None:
    headers, body = there.key(), a_body(gate=tmp_path / "gate", mark=tmp_path / "mark")
    text = json.dumps(body).encode()
    request = (
        f"POST {ROUTE} HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY}\r\nIdempotency-Key: {headers['Idempotency-Key']}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    ).encode()
    with socket.create_connection((there.running.server.host, there.running.server.port)) as connection:
        connection.sendall(request + text)
        until(lambda: marks(tmp_path / "mark", "waiting") == 1)
        time.sleep(0.15)  # by now somebody watches whether we hang up
    until(lambda: there.client.get("/health").json()["in_flight"] == 0, seconds=1.0)
    (tmp_path / "gate").touch()
    again = there.post(body, **headers)
    assert again.status_code == 200
    assert "idempotent-replayed" not in again.headers
    assert marks(tmp_path / "mark", "reset") == 2


def test_two_callers_may_choose_the_same_key(there: House) -> None:
    headers = there.key()
    one = there.post(a_body(), **headers)
    two = there.running.stranger.post(ROUTE, json=a_body(seed=1), headers={"X-API-Key": ALIAS, **headers})
    assert one.status_code == two.status_code == 200
    assert one.json()["rollout_id"] != two.json()["rollout_id"]


@pytest.mark.server
@pytest.mark.parametrize(
    "lines",
    ["Idempotency-Key:", "Idempotency-Key:  ", "Idempotency-Key: a b", f"Idempotency-Key: {'a' * 256}",
     "Idempotency-Key: a\r\nIdempotency-Key: a", "Idempotency-Key: a\r\nidempotency-key: b", "Idempotency-Key: caf\u00e9"],
    ids=["empty", "spaces", "space", "256", "two", "two names", "non-ASCII"],
)  # fmt: skip
def test_a_malformed_key_is_422_naming_the_header(running: RunningServer, lines: str) -> None:
    text = json.dumps({"run_id": "r", "mode": "rl", "ops": [], "env": {}, "policy": {}}).encode()
    found = running.raw(
        f"POST {ROUTE} HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY}\r\n{lines}\r\nContent-Length: {len(text)}\r\n\r\n".encode()
        + text
    )
    assert found.startswith(b"HTTP/1.1 422"), found
    error = json.loads(found.partition(b"\r\n\r\n")[2])["detail"]["error"]
    assert error["code"] == "invalid_header"
    assert error["fields"][0]["loc"] == ["header", "Idempotency-Key"]


# -- Prefer: respond-async -----------------------------------------------------------------------------------------


@pytest.mark.server
def test_an_answer_that_is_fetched_later(here: House, tmp_path: Path) -> None:
    began = time.time()
    taken = here.post(a_body(gate=tmp_path / "gate"), **ASYNC)
    assert taken.status_code == 202
    assert taken.headers["preference-applied"] == "respond-async"
    path, told = taken.headers["location"], taken.json()
    assert path == told["url"] == f"/rollouts/{told['rollout_id']}"
    assert told["status"] == "running"
    assert began - 1 < told["created_at"] < time.time() + 1
    pending = here.get(path)
    assert pending.status_code == 202
    assert (pending.headers["retry-after"], pending.headers["location"]) == ("1", path)
    assert pending.json()["rollout_id"] == told["rollout_id"]
    (tmp_path / "gate").touch()
    answer = here.ended(path)
    assert answer.status_code == 200
    plain = here.post(a_body(gate=tmp_path / "gate"))
    assert set(answer.json()) == set(plain.json())
    RolloutResponse.model_validate_json(answer.content)
    assert answer.json()["rollout_id"] == told["rollout_id"]
    assert answer.json()["digest"] == plain.json()["digest"]
    again = here.get(path)
    assert again.content == answer.content
    assert "idempotent-replayed" not in again.headers, "a GET repeats nothing"


def test_who_waits_for_an_end_that_does_not_come_is_told_so(houses: Houses, tmp_path: Path) -> None:
    here = houses.get(0, False)
    path = here.post_async(a_body(gate=tmp_path / "gate"))
    began = time.monotonic()
    assert here.get(path, Prefer="wait=1").status_code == 202
    assert 0.9 < time.monotonic() - began < 5
    (tmp_path / "gate").touch()
    assert here.ended(path).status_code == 200


def test_a_quick_one_is_answered_at_once_when_the_caller_waits(there: House) -> None:
    response = there.post(a_body(), Prefer="respond-async, wait=5")
    assert response.status_code == 200
    assert there.get(f"/rollouts/{response.json()['rollout_id']}").content == response.content


def test_the_callers_going_does_not_cancel_it(there: House, tmp_path: Path) -> None:
    headers, body = there.key(), a_body(gate=tmp_path / "gate", mark=tmp_path / "mark")
    with pytest.raises(httpx.ReadTimeout):
        there.client.post(ROUTE, json=body, headers={"Prefer": "respond-async, wait=20", **headers}, timeout=0.4)
    until(lambda: marks(tmp_path / "mark", "waiting") == 1)
    time.sleep(0.1)
    (tmp_path / "gate").touch()
    assert there.post(body, **headers).status_code == 200
    assert marks(tmp_path / "mark", "reset") == 1


@pytest.mark.parametrize(
    ("config", "status", "boundary"),
    [
        ({"breaks": "reset"}, 500, "environment"),
        ({"breaks": "rubric"}, 500, "scoring"),
        ({"slow": 0.05, "steps": 90, "safety": {"max_time_s": 0.2}}, 504, "timeout"),
    ],
    ids=["reset", "rubric", "deadline"],
)
def test_a_failure_is_told_to_who_fetches_it(there: House, config: dict[str, Any], status: int, boundary: str) -> None:
    path = there.post_async(a_body(**config))
    response = there.ended(path)
    assert response.status_code == status
    error = error_of(response)
    assert error["boundary"] == boundary
    assert path.endswith(str(error["rollout_id"]))
    again = there.get(path)
    assert (again.status_code, error_of(again)) == (status, error)


def test_what_the_constructor_refuses_is_422_where_the_answer_would_be(there: House) -> None:
    path = there.post_async(a_body(breaks="config"))
    response = there.ended(path)
    assert response.status_code == 422
    assert "there is no such show" in response.text
    assert there.get(path).status_code == 422
    assert there.post(a_body(breaks="config"), Prefer="respond-async, wait=5").status_code == 422
    assert there.post(a_body(seed=1000), **ASYNC).status_code == 422, "what can be seen before is told at once"


@pytest.mark.parametrize("name", ["0" * 32, "x", "A" * 32, "0" * 33, "%2e%2e", "0" * 31 + "%0a", "\u0661" * 32])
def test_an_id_that_nobody_knows_is_404(there: House, name: str) -> None:
    for verb in ("GET", "DELETE"):
        response = there.client.request(verb, f"/rollouts/{name}")
        assert response.status_code == 404
        assert error_of(response)["code"] == "not_found"


def test_a_plain_rollout_is_as_it_was(there: House) -> None:
    response = there.post(a_body())
    assert response.status_code == 200
    assert not {"location", "idempotent-replayed", "preference-applied"} & set(response.headers)
    later = there.get(f"/rollouts/{response.json()['rollout_id']}")
    assert later.status_code == (404 if there.file is None else 200), "it is found where it is stored"


@pytest.mark.server
def test_a_rollout_can_be_cancelled(here: House, tmp_path: Path) -> None:
    path = here.post_async(a_body(gate=tmp_path / "gate", mark=tmp_path / "mark"))
    until(lambda: marks(tmp_path / "mark", "waiting"))
    cancelled = here.client.delete(path)
    assert cancelled.json() == {"rollout_id": path[-32:], "status": "cancelled"}
    assert here.client.delete(path).json() == {"rollout_id": path[-32:], "status": "ended"}
    response = here.get(path)
    assert response.status_code == 503
    error = error_of(response)
    assert (error["boundary"], error["code"]) == ("cancelled", "cancelled")
    assert error_of(here.get(path)) == error
    if here.file is not None:
        stored = here.stored(path[-32:])
        assert stored is not None and stored.failure is not None
        assert (stored.status, stored.failure["boundary"]) == ("failed", "cancelled")
        assert stored.failure["error_id"] == error["error_id"]
        assert stored.events[-1]["kind"] == "failed"
    (tmp_path / "gate").touch()
    until(lambda: marks(tmp_path / "mark", "close"))


def test_one_that_ended_cannot_be_cancelled(there: House) -> None:
    path = f"/rollouts/{there.post(a_body(), Prefer='respond-async, wait=9').json()['rollout_id']}"
    assert there.client.delete(path).json()["status"] == "ended"
    assert there.get(path).status_code == 200


# -- streams -------------------------------------------------------------------------------------------------------


@pytest.mark.server
def test_a_stream_is_the_events_and_then_the_answer(here: House) -> None:
    with following(here, body=a_body(seed=2, steps=5)) as stream:
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
    as_stored(here, frames, answer["rollout_id"])
    assert here.get(path).json() == answer


@pytest.mark.server
def test_a_picture_is_there_when_its_event_has_come(here: House, tmp_path: Path) -> None:
    seed = 10 + 2 * here.workers + (here.file is not None)
    names = []
    with following(here, body=a_body(seed=seed, image=True, steps=4, gate=tmp_path / "gate", at=2)) as stream:
        for number in range(10**6):
            if number == 5:
                (tmp_path / "gate").touch()
            frame = stream.read(1)
            if not frame:
                break
            for name in pictures_of(frame[0]):
                picture = here.client.get(f"/blobs/{name}")
                assert picture.status_code == 200
                assert picture.content.startswith(b"\x89PNG")
                names.append(name)
    assert len(set(names)) == 5


WAITING = 13
"""Events of a rollout that waits in its third step: started, observed, two turns of four, called, answered, acted."""


@pytest.mark.ci(keep=8)
@pytest.mark.server
@pytest.mark.parametrize("how", ["GET", "POST"])
@pytest.mark.parametrize("cut", [0, 1, 6, WAITING])
def test_a_stream_that_was_cut_goes_on_where_it_was(here: House, tmp_path: Path, how: str, cut: int) -> None:
    headers = here.key()
    body = a_body(gate=tmp_path / "gate", at=2, steps=4, mark=tmp_path / "mark")
    with following(here, body=body, **headers) as stream:
        path = stream.response.headers["location"]
        frames = stream.read(cut)
    last = {"Last-Event-ID": str(cut - 1)} if cut else {}
    with following(here, path if how == "GET" else ROUTE, None if how == "GET" else body, **headers, **last) as stream:
        assert stream.response.headers["location"] == path
        frames += stream.read(WAITING - cut)
        (tmp_path / "gate").touch()
        frames += stream.rest()
    well_formed(frames)
    assert frames[-1].kind == "result"
    assert marks(tmp_path / "mark", "reset") == 1
    as_stored(here, frames, frames[-1].data["rollout_id"])
    for first in range(len(frames)):
        after = {"Last-Event-ID": str(first - 1)} if first else {}
        assert followed(here, path, **after) == frames[first:]
    assert followed(here, ROUTE, body, **headers, **last) == frames[cut:]
    for nothing in (len(frames) - 1, len(frames), 10**8):
        assert here.get(path, **STREAM, **{"Last-Event-ID": str(nothing)}).status_code == 204


def test_a_stream_that_was_cut_twice_goes_on_too(there: House, tmp_path: Path) -> None:
    with following(there, body=a_body(gate=tmp_path / "gate", at=2)) as stream:
        path = stream.response.headers["location"]
        frames = stream.read(3)
    for _ in range(2):
        with following(there, path, **{"Last-Event-ID": str(frames[-1].number)}) as stream:
            frames += stream.read(2)
        time.sleep(0.05)
    with following(there, path, **{"Last-Event-ID": str(frames[-1].number)}) as stream:
        (tmp_path / "gate").touch()
        frames += stream.rest()
    well_formed(frames)
    assert frames[-1].kind == "result"


def test_who_has_more_than_there_is_gets_what_comes_after(there: House, tmp_path: Path) -> None:
    path = there.post_async(a_body(gate=tmp_path / "gate", at=2, steps=4))
    with (
        following(there, path, **{"Last-Event-ID": "15"}) as later,
        following(there, path, **{"Last-Event-ID": "99999"}) as never,
    ):
        (tmp_path / "gate").touch()
        frames = later.rest()
        assert frames[0].number == 16
        assert frames[-1].kind == "result"
        assert never.rest() == []


def test_two_followers_see_the_same(there: House, tmp_path: Path) -> None:
    headers, body = there.key(), a_body(gate=tmp_path / "gate", at=2)
    with following(there, body=body, **headers) as one:
        path = one.response.headers["location"]
        frames = one.read(4)
        with following(there, path) as two, following(there, body=body, **headers) as three:
            (tmp_path / "gate").touch()
            frames += one.rest()
            assert two.rest() == three.rest() == frames
    well_formed(frames)


@pytest.mark.ci(keep=8)
@pytest.mark.server
@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"breaks": "reset"}, "environment_raised"),
        ({"breaks": "step"}, "environment_raised"),
        ({"breaks": "rubric"}, "criterion_failed"),
        ({"slow": 0.05, "steps": 90, "safety": {"max_time_s": 0.3}}, "deadline"),
    ],
    ids=["reset", "step", "rubric", "deadline"],
)
def test_a_failure_ends_its_stream_and_is_stored_so(here: House, config: dict[str, Any], code: str) -> None:
    with following(here, body=a_body(**config)) as stream:
        path = stream.response.headers["location"]
        frames = stream.rest()
    well_formed(frames)
    assert frames[-1].kind == "failure"
    error = frames[-1].data["detail"]["error"]
    assert error["code"] == code
    assert error == error_of(here.get(path))
    failed = [frame.data for frame in frames if frame.kind == "failed"]
    assert [event["error_id"] for event in failed] == ([] if code == "criterion_failed" else [error["error_id"]])
    as_stored(here, frames, path[-32:])


@pytest.mark.ci
def test_one_that_hangs_is_told_as_it_is_stored(there: House, tmp_path: Path) -> None:
    body = a_body(gate=tmp_path / "gate", safety={"max_time_s": 0.3})
    with following(there, body=body) as stream:
        path = stream.response.headers["location"]
        frames = stream.rest()
    (tmp_path / "gate").touch()
    well_formed(frames)
    error = frames[-1].data["detail"]["error"]
    assert error["boundary"] == "timeout"
    assert frames[-2].kind == "failed"
    assert frames[-2].data["error_id"] == error["error_id"]
    assert "acted" in [frame.kind for frame in frames]
    as_stored(there, frames, path[-32:])


@pytest.mark.server
def test_one_that_is_cancelled_is_told_as_it_is_stored(here: House, tmp_path: Path) -> None:
    with following(here, body=a_body(gate=tmp_path / "gate")) as stream:
        path = stream.response.headers["location"]
        frames = stream.read(9)
        assert here.client.delete(path).json()["status"] == "cancelled"
        frames += stream.rest()
    (tmp_path / "gate").touch()
    well_formed(frames)
    assert [frame.kind for frame in frames[-2:]] == ["failed", "failure"]
    assert frames[-1].data["detail"]["error"]["error_id"] == frames[-2].data["error_id"]
    as_stored(here, frames, path[-32:])


def test_what_cannot_begin_is_refused_and_no_stream(there: House) -> None:
    for body in (a_body(seed=1000), {**a_body(), "mode": "?"}):
        response = there.post(body, **STREAM)
        assert response.status_code == 422
        assert error_of(response)["fields"]
    refused = there.post(a_body(), **STREAM, **{"Last-Event-ID": "x"})
    assert error_of(refused)["code"] == "invalid_header"


# -- servers of their own ------------------------------------------------------------------------------------------


@pytest.mark.server
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_after_a_restart_everything_is_still_there(tmp_path: Path, workers: int) -> None:
    good, bad = a_body(image=True, mark=tmp_path / "mark"), a_body(breaks="step")
    with house(tmp_path / "kept.db", workers) as before:
        answer = before.post(good, **{"Idempotency-Key": "a"})
        failure = before.post(bad, **{"Idempotency-Key": "b"})
        frames = followed(before, body=good, **{"Idempotency-Key": "a"})
        path = before.post_async(a_body(seed=9))
        fetched = before.ended(path)
    with house(tmp_path / "kept.db", 1 - workers) as after:
        again = after.post(good, **{"Idempotency-Key": "a"})
        assert (again.status_code, again.content) == (200, answer.content)
        assert again.headers["idempotent-replayed"] == "true"
        assert error_of(after.post(bad, **{"Idempotency-Key": "b"})) == error_of(failure)
        assert after.post(bad, **{"Idempotency-Key": "a"}).status_code == 409
        assert after.get(path).content == fetched.content
        assert followed(after, f"/rollouts/{answer.json()['rollout_id']}", **{"Last-Event-ID": "3"}) == frames[4:]
        names = [name for frame in frames for name in pictures_of(frame)]
        assert names and all(after.client.get(f"/blobs/{name}").status_code == 200 for name in names)
    assert marks(tmp_path / "mark", "reset") == 1


@pytest.mark.process
@pytest.mark.server
def test_what_ran_when_the_server_was_killed_is_said_to_be_lost(tmp_path: Path) -> None:
    file = tmp_path / "kept.db"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = {
        "ENVIRONMENT_API_KEY": KEY, "PATH": os.environ["PATH"], "PYTHONPATH": str(Path.cwd()), "HOME": str(tmp_path),
    }  # fmt: skip
    command = [sys.executable, "-m", "taskapp_kit", "serve", str(FILE), "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--store", f"sqlite:///{file}"], env=environ, cwd=tmp_path,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    body = a_body(gate=tmp_path / "gate", mark=tmp_path / "mark")
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"X-API-Key": KEY}) as client:
            until(lambda: _answers(client), 20)
            taken = client.post(ROUTE, json=body, headers={**ASYNC, "Idempotency-Key": "k"})
            path = taken.headers["location"]
            until(lambda: marks(tmp_path / "mark", "waiting") == 1)
            with house(file, 0) as other:
                assert other.get(path).status_code == 202
                refused = other.client.delete(path)
                assert (refused.status_code, error_of(refused)["code"]) == (409, "rollout_elsewhere")
                process.send_signal(signal.SIGKILL)
                process.wait()
                lost = other.ended(path)
                assert lost.status_code == 503
                error = error_of(lost)
                assert (error["boundary"], error["code"]) == ("cancelled", "server_died")
                assert [frame.kind for frame in followed(other, path)] == ["failure"]
                (tmp_path / "gate").touch()
                assert other.post(body, **{"Idempotency-Key": "k"}).status_code == 200
                assert marks(tmp_path / "mark", "reset") == 2
    finally:
        process.kill()
        process.wait()


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/").status_code == 200
    except httpx.TransportError:
        return False


class Full(SqliteStore):
    """A store in memory that can save nothing."""

    async def save(self, rollout: StoredRollout) -> None:
        raise StoreError("the disk is full.")


@pytest.mark.server
def test_what_could_not_be_kept_is_an_error_wherever_it_is_asked_for() -> None:
    with opened(SETTINGS, store=Full(None), serves=APP) as running:
        here = House(running, None, 0)
        path = here.post_async(a_body())
        for response in (here.ended(path), here.get(path)):
            assert response.status_code == 500
            assert error_of(response)["code"] == "store_failed"
        refused = here.post(a_body(), **here.key())
        assert (refused.status_code, error_of(refused)["code"]) == (503, "store_failing"), "nothing is played any more"
    with opened(SETTINGS, store=Full(None), serves=APP) as running:
        frames = followed(House(running, None, 0), body=a_body())
        well_formed(frames)
        assert frames[-1].data["detail"]["error"]["code"] == "store_failed"


@pytest.mark.server
def test_saturated_is_not_remembered(tmp_path: Path) -> None:
    with opened(SETTINGS, serves=APP, max_concurrent=1) as running:
        here = House(running, None, 0)
        path = here.post_async(a_body(gate=tmp_path / "gate"))
        for headers in ({"Idempotency-Key": "k"}, ASYNC, STREAM):
            refused = here.post(a_body(), **headers)
            assert refused.status_code == 503
            assert error_of(refused)["code"] == "saturated"
            assert refused.headers["retry-after"]
        (tmp_path / "gate").touch()
        assert here.ended(path).status_code == 200
        assert here.post(a_body(), **{"Idempotency-Key": "k"}).status_code == 200


@pytest.mark.server
def test_a_stream_over_a_bare_socket_is_chunked_and_ends(tmp_path: Path) -> None:
    with opened(SETTINGS, serves=APP) as running:
        text = json.dumps(a_body()).encode()
        with socket.create_connection((running.server.host, running.server.port), timeout=5) as connection:
            connection.sendall(
                f"POST {ROUTE} HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY}\r\nAccept: text/event-stream\r\n"
                f"Connection: close\r\nContent-Length: {len(text)}\r\n\r\n".encode()
                + text
            )
            found = read_answer(connection)
        head, _, rest = found.partition(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in head.lower()
        assert rest.endswith(b"0\r\n\r\n")
