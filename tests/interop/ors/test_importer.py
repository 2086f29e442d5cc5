"""`from_ors` against our own ORS protocol on a real server, and against a server that misbehaves in each way."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from taskapp_kit import DeclarationError, RolloutFailed, TaskApp
from taskapp_kit.interop.ors import from_ors
from taskapp_kit.testing import play

KEY = "round-trip-key-41c7"
pytestmark = pytest.mark.server


def app_of(url: str, max_steps: int = 40, **options: Any) -> TaskApp:
    app = TaskApp("of-ors")
    env = from_ors(url, **options)
    app.environment("it", splits=env.splits or {"train": range(3)}, max_steps=max_steps)(env)
    return app


class Odd(BaseHTTPRequestHandler):
    """An ORS server whose answers are those that a test sets, as (status, headers, body) by the end of the path."""

    answers: ClassVar[dict[str, list[tuple[int, dict[str, str], str]]]] = {}
    asked: ClassVar[list[str]] = []
    usual: ClassVar[dict[str, str]] = {
        "list_environments": '["odd"]',
        "splits": '[{"name": "train", "type": "train"}]',
        "num_tasks": '{"num_tasks": 3}',
        "tools": '{"tools": [{"name": "go", "description": "Go.", "input_schema": null}]}',
        "task": '{"task": {"id": 1}}',
        "create_session": "event: task_id\ndata: the-sid\n\nevent: end\ndata: \n\n",
        "create": '{"sid": "the-sid"}',
        "prompt": '[{"type": "text", "text": "Go!", "detail": null}]',
        "delete": "{}",
        "delete_session": "{}",
    }

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self._answer()

    def _answer(self) -> None:
        name = self.path.rpartition("/")[2]
        self.asked.append(name)
        listed = self.answers.get(name)
        status, headers, body = (200, {}, self.usual.get(name, ""))
        if listed:
            status, headers, body = listed[0] if len(listed) == 1 else listed.pop(0)
        if status == 0:
            self.connection.close()
            return
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("content-length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@contextmanager
def odd(**answers: list[tuple[int, dict[str, str], str]]) -> Iterator[str]:
    Odd.answers, Odd.asked[:] = answers, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Odd)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def stream(*events: tuple[str, str]) -> list[tuple[int, dict[str, str], str]]:
    return [(200, {}, "".join(f"event: {kind}\ndata: {data}\n\n" for kind, data in events))]


def paid(reward: Any, finished: bool = True, **metadata: Any) -> list[tuple[int, dict[str, str], str]]:
    output = {
        "blocks": [{"type": "text", "text": "gone", "detail": None}],
        "metadata": metadata, "reward": reward, "finished": finished,
    }  # fmt: skip
    text = json.dumps({"ok": True, "output": output})
    return stream(("task_id", "1"), ("chunk", text[:20]), ("end", text[20:]))


GO = [{"type": "env", "tool": "go", "args": {}}]


@pytest.mark.parametrize(
    "answers,sentence",
    [
        ({"call": stream(("task_id", "1"), ("error", "KeyError: sentinel-detail"))}, "could not run 'go'"),
        ({"call": stream(("task_id", "1"), ("chunk", '{"ok":'))}, "closed the stream before"),
        ({"call": stream(("task_id", "1"), ("end", "[]"))}, "other than a tool result"),
        ({"call": stream(("end", '{"ok": true}'))}, "without an output"),
        ({"call": [(500, {}, "sentinel-detail")]}, "HTTP 500"),
        ({"call": [(0, {}, "")]}, "/call"),
        ({"call": stream(("end", '{"ok": false, "error": "x", "reason": "episode_finished"}'))}, "episode_finished"),
        ({"call": paid("much")}, "reward that is not a number"),
        ({"call": paid(1, finished="false")}, "`finished` as a str"),  # type: ignore[arg-type]
        ({"call": paid(1, finished=1)}, "`finished` as a int"),
        ({"call": paid(1, truncated="yes")}, "`truncated` as a str"),
        ({"call": paid(None)}, "sent no reward in 1 calls"),
        ({"call": paid(None, episode={"reward": None})}, "undefined reward"),
        ({"prompt": [(200, {}, "{}")]}, "not a list of blocks"),
        ({"prompt": [(200, {}, '[{"type": "video"}]')]}, "neither text nor PNG images"),
        ({"prompt": [(410, {}, "{}")]}, "HTTP 410"),
        ({"create_session": stream(("end", "x"))}, "without an id"),
        ({"create": [(503, {"Retry-After": "60"}, "")]}, "was not ready within 0.5 s"),
        ({"task": [(200, {}, "{}")]}, "without a task"),
    ],
)
def test_invalid_response_is_a_failure_without_a_reward(
    answers: dict[str, list[tuple[int, dict[str, str], str]]], sentence: str
) -> None:
    with odd() as url:
        app = app_of(url, open_seconds=0.5, seconds=5.0)
        app.freeze()
        Odd.answers = answers
        with pytest.raises(RolloutFailed, match=sentence) as failed:
            play(app, seed=1, ops=GO)
        assert failed.value.boundary == "environment" and "sentinel" not in str(failed.value)
        if "delete" in Odd.asked or "create" in Odd.asked:
            assert Odd.asked[-1] == "delete_session", "the session is closed"


def test_importer_waits_for_a_starting_server() -> None:
    starting = (503, {"X-Backend-State": "starting", "Retry-After": "0"}, "")
    with odd() as url:
        app = app_of(url, open_seconds=20.0)
        app.freeze()
        Odd.answers = {"prompt": [starting, starting, (200, {}, Odd.usual["prompt"])], "call": paid(0.5)}
        rollout = play(app, seed=1, ops=GO)
        assert rollout.reward == 0.5 and rollout.trajectory.status == "terminated"
        Odd.answers = {"call": paid(0.25, truncated=True)}
        assert play(app, seed=1, ops=GO).trajectory.status == "truncated"
        Odd.answers = {"call": paid(None, finished=False)}
        unpaid = app_of(url, rewarded=False)
        unpaid.rubric(lambda trajectory: 1.0)
        assert play(unpaid, seed=1, ops=GO, config={}).reward == 1.0


@pytest.mark.parametrize(
    "answers,sentence",
    [
        ({"list_environments": [(200, {}, "[]")]}, "found no environments"),
        ({"list_environments": [(200, {}, "x")]}, "other than JSON"),
        ({"splits": [(200, {}, "[1]")]}, "cannot read the response"),
        ({"num_tasks": [(200, {}, '{"num_tasks": 0}')]}, "found no tasks"),
        ({"tools": [(200, {}, '{"tools": []}')]}, "found no tools"),
        ({"tools": [(404, {}, "")]}, "Check the URL"),
    ],
)
def test_a_server_that_does_not_describe_itself_is_a_problem_of_the_app(
    answers: dict[str, list[tuple[int, dict[str, str], str]]], sentence: str
) -> None:
    with odd(**answers) as url, pytest.raises(DeclarationError, match=sentence):
        app_of(url).freeze()
