"""A real uvicorn on a thread before a real service: the app below has an environment for each way of going wrong."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pydantic
from pydantic import BaseModel

from taskapp_kit import Image, Private, Step, TaskApp, Trajectory, action
from taskapp_kit.asgi import create
from taskapp_kit.config import Settings
from taskapp_kit.errors import FieldProblem, RequestError
from taskapp_kit.net.body import read_object
from taskapp_kit.records.protocols import Store
from taskapp_kit.rollout.service import Service, ServiceSettings
from taskapp_kit.serve import key_file
from taskapp_kit.serve.route import invalid_request
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from taskapp_kit.wire.rollout import RolloutRequest
from tests.recording import answered, recorded

KEY = "Tr0ub4dor-and-3-staples-9f27c1"
ALIAS = "second-Sesame-0b55e8d2"
LABEL_KEYS = {"alice": "alice-key-7a1d", "bob": "bob-key-88e2", "root": "root-key-19cc"}
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8cfc0000003010100c9fe92ef"
    "0000000049454e44ae426082"
)

app = TaskApp("yard", version="2.1.0", description="A yard to knock things over in.")
RESETS = [0]
"""How many episodes were begun, whoever asked: an attack must leave it alone."""


@app.environment("counter", splits={"train": range(64), "test": range(64, 80)}, max_steps=12, max_turns=12)
class Counter:
    """Count to the target."""

    def __init__(self, low: int = 3, high: int = 6) -> None:
        self.low, self.high = low, high

    def reset(self, seed: int) -> str:
        RESETS[0] += 1
        self.target, self.count = random.Random(seed).randint(self.low, self.high), 0
        return f"target {self.target}"

    @action
    def increment(self, by: int = 1) -> Step:
        """Add `by`."""
        self.count += by
        return Step(
            f"count {self.count}", reward=float(self.count == self.target), terminated=self.count >= self.target
        )


@app.environment("broken", splits={"train": range(8)})
class Broken:
    """Raises where the seed says: 0 in reset, others in the step."""

    def reset(self, seed: int) -> str:
        if seed == 0:
            raise OSError("sentinel-detail-of-the-environment")
        return "here"

    @action
    def go(self) -> Step:
        """Go."""
        raise KeyError("sentinel-detail-of-the-environment")


@app.environment("slow", splits={"train": range(8)})
class Slow:
    """Takes its time, or until it is released."""

    closed = 0
    released = threading.Event()

    def __init__(self, seconds: float = 0.2) -> None:
        self.seconds = seconds

    def reset(self, seed: int) -> str:
        return "waiting"

    @action
    def wait(self) -> Step:
        """Wait."""
        Slow.released.wait(self.seconds)
        return Step("waited", reward=0.0)

    def close(self) -> None:
        Slow.closed += 1


@app.environment("pictures", splits={"train": range(8)})
class Pictures:
    """Shows one picture."""

    def reset(self, seed: int) -> list[Image]:
        return [Image(PNG)]

    @action
    def look(self) -> Step:
        """Look."""
        return Step([Image(PNG)], reward=1.0, terminated=True)


class Row(BaseModel):
    question: str
    answer: Private[str]


app.tasks(
    "quiz",
    row=Row,
    prompt="{question}",
    train=[
        Row(question="Two and two?", answer="sentinel-four"),
        Row(question="Three and three?", answer="sentinel-six"),
    ],
    test=[Row(question="One and one?", answer="sentinel-two")],
)


@app.rubric(weight=3, environment="counter")
def reached(trajectory: Trajectory) -> float:
    """The target was hit."""
    return 1.0 if trajectory.total_reward == 1.0 else 0.0


@app.rubric(weight=1, environment="pictures")
def torn(trajectory: Trajectory) -> float:
    """Cannot be computed."""
    raise ZeroDivisionError("sentinel-detail-of-the-rubric")


@app.rubric(weight=1, environment="quiz")
def named(answer_text: str, task: Row) -> float:
    """The answer is named."""
    return float(task.answer in answer_text)


@app.policy("one", environment="counter")
def one(observation: str, rng: random.Random) -> dict[str, dict[str, int]]:
    """Adds one."""
    return {"increment": {"by": 1}}


@app.policy("lost", environment="counter")
def lost(observation: str, rng: random.Random) -> dict[str, dict[str, int]]:
    """Does not know what to do."""
    raise RuntimeError("sentinel-detail-of-the-policy")


@app.policy("waiting", environment="slow")
def waiting(observation: str, rng: random.Random) -> dict[str, dict[str, int]]:
    """Waits."""
    return {"wait": {}}


@app.policy("looking", environment="pictures")
def looking(observation: list[object], rng: random.Random) -> dict[str, dict[str, int]]:
    """Looks."""
    return {"look": {}}


@app.policy("going", environment="broken")
def going(observation: str, rng: random.Random) -> dict[str, dict[str, int]]:
    """Goes."""
    return {"go": {}}


def request_body(
    environment: str = "counter", policy: str = "one", seed: int | None = 0, **more: object
) -> dict[str, object]:
    """A body of `POST /rollout`."""
    return {
        "run_id": "run-1",
        "env": {"env_name": environment, "seed": seed, "config": more.pop("config", {})},
        "policy": {"config": {"policy": policy}},
        "ops": [],
        "mode": "eval",
        **more,
    }


class RunningServer:
    """A running server, a client with the key, and a plain socket."""

    def __init__(self, server: BackgroundServer, service: Service) -> None:
        self.server = server
        self.service = service
        self.url = server.url
        self.client = httpx.Client(base_url=server.url, headers={"X-API-Key": KEY}, timeout=20)
        self.stranger = httpx.Client(base_url=server.url, timeout=20)

    def raw(self, data: bytes, *, seconds: float = 5.0, end: bool = False) -> bytes:
        """Sends bytes, and reads until the answer is whole or the server closes. end: closes our sending side."""
        with socket.create_connection((self.server.host, self.server.port), timeout=seconds) as connection:
            try:
                connection.sendall(data)
                if end:
                    connection.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # the server may close first; what it said is still there
            return answered(read_answer(connection, body=not data.startswith(b"HEAD")))


def refused_fields(running: RunningServer, body: bytes) -> list[tuple[list[str | int], str]]:
    """Place and type of each field that `POST /rollout` refuses before anything runs, without the request."""
    problems: Sequence[FieldProblem] = ()
    try:
        value = read_object(body)
        running.service.planner.plan(RolloutRequest.model_validate(value))
    except pydantic.ValidationError as error:
        problems = invalid_request(error, value).fields
    except RequestError as error:
        problems = error.fields
    return [(list(problem.loc), problem.type) for problem in problems]


def read_answer(connection: socket.socket, *, body: bool = True) -> bytes:
    """One HTTP answer off a socket; what there is of it when the server closes or goes quiet."""
    found = b""
    try:
        while True:
            head, blank, rest = found.partition(b"\r\n\r\n")
            if blank:
                sizes = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                if not body or (sizes and len(rest) >= int(sizes[0].split(b":")[1])):
                    return found
            chunk = connection.recv(65536)
            if not chunk:
                return found
            found += chunk
    except OSError:
        return found


@contextmanager
def opened(
    settings: Settings | None = None,
    *,
    exposure: str = "public",
    store: Store | None = None,
    max_concurrent: int = 64,
    make: Callable[..., Service] = Service,
    workers: int = 0,
    serves: TaskApp = app,
) -> Iterator[RunningServer]:
    """A server of its own for one test."""
    settings = settings or Settings(environment_api_key=KEY, environment_api_key_aliases=(ALIAS,))
    limits = ServiceSettings(max_concurrent=max_concurrent, exposure=exposure, workers=workers)  # type: ignore[arg-type]
    service = make(serves, limits, store=store)
    with BackgroundServer(recorded(create(service, settings, exposure=exposure))) as server:  # type: ignore[arg-type]
        running = RunningServer(server, service)
        with running.client, running.stranger:
            yield running


def labelled_keys(folder: Path, **more: Any) -> Settings:
    """Settings with KEY and a file that has LABEL_KEYS, of which root's is an admin's. more: further settings."""
    for label, key in LABEL_KEYS.items():
        key_file.add(folder / "keys", label, key, admin=label == "root")
    return Settings(environment_api_key=KEY, keys_file=folder / "keys", **more)


def fragments(text: bytes | str, *keys: str, length: int = 6) -> list[str]:
    """Every piece of `length` characters of a key that stands in the text; empty is what must come back."""
    where = text if isinstance(text, str) else text.decode("latin-1")
    return [key[i : i + length] for key in keys for i in range(len(key) - length + 1) if key[i : i + length] in where]


def error_of(response: httpx.Response) -> dict[str, object]:
    """The error of an answer, after checking that the envelope is the one shape."""
    body = response.json()
    assert list(body) == ["detail"] and list(body["detail"]) == ["error"], body
    error = body["detail"]["error"]
    assert isinstance(error, dict)
    assert {"code", "message", "hint"} <= set(error)
    assert set(error) <= {"code", "message", "hint", "rollout_id", "boundary", "error_id", "fields"}
    for field in error.get("fields", []):
        assert set(field) == {"loc", "message", "type"} and field["loc"] and field["message"]
    return error
