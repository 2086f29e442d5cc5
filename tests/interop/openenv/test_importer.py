"""`from_openenv` against our own OpenEnv protocol on a real server, and against a socket that misbehaves in each way."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import Server, ServerConnection, serve

from taskapp_kit import DeclarationError, RolloutFailed, TaskApp
from taskapp_kit.interop.openenv import from_openenv
from taskapp_kit.testing import play

KEY = "round-trip-key-88f1"
pytestmark = pytest.mark.server


def app_of(url: str, name: str, max_steps: int = 40, **options: Any) -> TaskApp:
    app = TaskApp("of-openenv")
    app.environment(name, splits={"train": range(1000)}, max_steps=max_steps)(from_openenv(url, **options))
    return app


# -- servers that misbehave ------------------------------------------------------------------------------------------

ACTION = {
    "type": "object",
    "properties": {
        "metadata": {"type": "object"},
        "kind": {"const": "go", "default": "go"},
        "where": {"$ref": "#/$defs/Where"},
        "tree": {"$ref": "#/$defs/Tree"},
        "fast": {"anyOf": [{"type": "boolean"}, {"type": "null"}], "default": False},
        "times": {"type": "integer", "minimum": 1, "maximum": 3},
    },
    "required": ["where"],
    "$defs": {
        "Where": {"type": "string", "enum": ["up", "down"], "title": "Where"},
        "Tree": {"type": "object", "properties": {"title": {"type": "string"}, "next": {"$ref": "#/$defs/Tree"}}},
    },
}
FIRST = {"observation": {"at": 0}, "reward": None, "done": False}
Script = Callable[[ServerConnection, dict[str, Any]], None]


@contextmanager
def serving(script: Script, action_schema: Any = None) -> Iterator[str]:
    """A server whose `/schema` is given, and whose socket passes each frame to `script`."""

    def process(connection: ServerConnection, request: Request) -> Response | None:
        if request.path == "/ws":
            return None
        found = {"/schema": {"action": action_schema or ACTION}, "/metadata": {"name": "scripted"}}[request.path]
        body = json.dumps(found).encode()
        return Response(200, HTTPStatus(200).phrase, Headers({"Content-Length": str(len(body))}), body)

    def handle(connection: ServerConnection) -> None:
        try:
            for received in connection:
                script(connection, json.loads(received))
        except ConnectionClosed:
            pass

    server: Server = serve(handle, "127.0.0.1", 0, process_request=process, compression=None)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
    finally:
        server.shutdown()
        thread.join()


def answering(**steps: Any) -> Script:
    """Answers reset and state; `step` is the answer to a step: an object, text, a function, or None for silence."""

    def script(connection: ServerConnection, frame: dict[str, Any]) -> None:
        kind = frame["type"]
        if kind == "close":
            connection.close()
            return
        found = steps.get(kind, {"type": "state", "data": {}} if kind == "state" else framed(FIRST))
        if callable(found):
            found = found(connection, frame)
        if found is not None:
            connection.send(found if isinstance(found, str) else json.dumps(found))

    return script


def framed(data: Any, kind: str = "observation") -> dict[str, Any]:
    return {"type": kind, "data": data}


def over(reward: Any, **more: Any) -> dict[str, Any]:
    return framed({"observation": {"at": 1}, "reward": reward, "done": True, **more})


def error(code: str, message: str = "secret words", **more: Any) -> dict[str, Any]:
    return framed({"code": code, "message": message, **more}, "error")


def hung_up(connection: ServerConnection, frame: dict[str, Any]) -> None:
    connection.close()


def twice(connection: ServerConnection, frame: dict[str, Any]) -> dict[str, Any]:
    connection.send(json.dumps(over(0.0)))
    return over(1.0)


UP = {"step": {"where": "up"}}


@pytest.mark.parametrize(
    "script,sentence",
    [
        ({"step": None}, "did not respond to 'step' within 0.3 s"),
        ({"step": hung_up}, "closed the connection before it responded to 'step'"),
        ({"reset": hung_up}, "closed the connection before it responded to 'reset'"),
        ({"step": error("EXECUTION_ERROR")}, r"an error \(EXECUTION_ERROR\)"),
        ({"reset": error("VALIDATION_ERROR")}, r"responded to 'reset' with an error"),
        ({"reset": error("FACTORY_ERROR")}, "FACTORY_ERROR"),
        ({"reset": error("CAPACITY_REACHED", "16/16 active")}, "no free session for 0.2 s: 16/16 active"),
        ({"reset": framed({**FIRST, "done": True})}, "ended the episode at reset"),
        ({"step": "no json"}, "other than a JSON object"),
        ({"step": '{"type":"observation","data":{"reward":NaN}}'}, "other than a JSON object"),
        ({"step": framed({}, "state")}, "frame of type 'state'; expected 'observation'"),
        ({"step": twice}, "an unexpected frame|expected 'state'"),
        ({"step": over("much")}, "a reward that is a str"),
        ({"step": framed({"observation": {}, "reward": 1, "done": "false"})}, "`done` as a str"),
        ({"step": framed({"observation": {}, "reward": 1, "done": 1})}, "`done` as a int"),
        ({"reset": framed({**FIRST, "done": None})}, "`done` as null"),
        ({"step": over(1, metadata={"truncated": "yes"})}, "`truncated` as a str"),
        ({"step": framed({"observation": 3, "reward": 1, "done": True})}, "an observation that is a int"),
        ({"step": over(None)}, "sent no reward in 1 steps"),
        ({"step": over(None, metadata={"episode": {"reward": None}})}, "an undefined reward"),
        ({"state": error("EXECUTION_ERROR"), "step": over(1)}, "responded to 'state' with an error"),
    ],
)
def test_invalid_response_of_the_server_is_a_failure(script: dict[str, Any], sentence: str) -> None:
    with serving(answering(**script)) as url:
        app = app_of(url, "it", seconds=0.3, open_seconds=0.2)
        with pytest.raises(RolloutFailed, match=sentence) as failed:
            play(app, seed=0, action=UP)
    assert failed.value.boundary == "environment" and "secret words" not in str(failed.value)


def test_policy_reads_validation_errors_of_the_server() -> None:
    sent: list[Any] = []

    def step(connection: ServerConnection, frame: dict[str, Any]) -> dict[str, Any]:
        sent.append(frame["data"])
        if len(sent) == 1:
            errors = [{"loc": ["where"], "msg": "not twice"}]
            return error("VALIDATION_ERROR", "Invalid message", errors=errors)
        return over(True, metadata={"truncated": True, "more": [1]})

    with serving(answering(step=step)) as url:
        played = play(app_of(url, "it", tool="move"), seed=0, action={"move": {"where": "up", "times": 2}}).trajectory
    assert [item.refused for item in played.steps] == ["Nothing was done: where: not twice", None]
    assert sent == [{"where": "up", "times": 2, "fast": False}] * 2, (
        "without metadata, constants and what was not given"
    )
    assert played.status == "truncated" and played.total_reward == 1.0
    assert played.steps[1].info == {"truncated": True, "more": [1]}


def test_the_schema_is_shown_with_its_references_resolved() -> None:
    with serving(answering(step=over(1))) as url:
        app = app_of(url, "it")
        shown = app.freeze().environments["it"].actions["step"].tool.parameters
        assert shown == {
            "type": "object",
            "additionalProperties": False,
            "required": ["where"],
            "properties": {
                "where": {"type": "string", "enum": ["up", "down"]},
                "tree": {"type": "object", "properties": {"title": {"type": "string"}, "next": {}}, "default": None},
                "fast": {"anyOf": [{"type": "boolean"}, {"type": "null"}], "default": False},
                "times": {"type": "integer", "minimum": 1, "maximum": 3, "default": None},
            },
        }
        wrong = [{"where": "left"}, {"where": "up", "times": 4}, {"where": "up", "metadata": {}}, {}]
        for arguments in wrong:
            ops = [{"type": "env", "tool": "step", "args": arguments}]
            assert play(app, seed=0, ops=ops).trajectory.steps[0].refused
        assert play(app, seed=0, action={"step": {"where": "up", "times": "2", "tree": {"next": 1}}}).reward == 1.0


def test_null_rewards_add_nothing_and_reward_at_reset_counts() -> None:
    rewards = iter([None, 0.5, None])

    def step(connection: ServerConnection, frame: dict[str, Any]) -> dict[str, Any]:
        reward = next(rewards)
        return framed({"observation": {"text": "on"}, "reward": reward, "done": False})

    with serving(answering(step=step, reset=framed({**FIRST, "reward": 0.25}))) as url:
        played = play(app_of(url, "it", max_steps=3), seed=0, action=UP).trajectory
    assert [item.reward for item in played.steps] == [None, 0.75, None] and played.steps[0].observation == "on"
    with serving(answering(step=over(None))) as url:
        unpaid = TaskApp("unpaid")
        unpaid.environment("it", max_steps=3)(from_openenv(url, rewarded=False))
        unpaid.rubric(lambda trajectory: 0.5)
        assert play(unpaid, seed=0, action=UP).reward == 0.5


def test_importer_waits_for_a_free_session() -> None:
    tries: list[float] = []

    def reset(connection: ServerConnection, frame: dict[str, Any]) -> dict[str, Any]:
        tries.append(1)
        if len(tries) < 3:
            connection.send(json.dumps(error("CAPACITY_REACHED")))
            connection.close()
        return framed(FIRST)

    with serving(answering(step=over(1), reset=reset)) as url:
        assert play(app_of(url, "it"), seed=0, action=UP).reward == 1.0
    assert len(tries) == 3


@pytest.mark.parametrize(
    "schema,expected",
    [
        ({"type": "object"}, "has no properties"),
        ({"type": "object", "properties": {"from": {"type": "string"}}}, "an argument named 'from'"),
        ({"type": "object", "properties": {"tool_name": {}, "arguments": {}}}, "found no tools"),
    ],
)
def test_undeclarable_action_is_reported_at_the_authors_line(schema: Any, expected: str) -> None:
    with serving(answering(step=over(1)), schema) as url, pytest.raises(DeclarationError, match=expected) as refused:
        app_of(url, "it").freeze()
    assert Path(__file__).name in refused.value.problems[0].place
