"""The mock model over real HTTP: what it answers, well and in every way badly."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from taskapp_kit.errors import ConfigError
from taskapp_kit.testing import ChatRequest, Faults, MockModel
from tests.waiting import until

from .conversation import ADD, CLIENT, STOP, ask, body

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def random_model() -> Iterator[MockModel]:
    with MockModel(seed=4, parallel=3) as model:
        yield model


def chat(model: MockModel, *said: Any, **more: Any) -> httpx.Response:
    return CLIENT.post(f"{model.url}/chat/completions", json=body(*said, **more))


# scripts


def sent(model: MockModel, *contents: dict[str, Any], headers: str = "") -> socket.socket:
    """A connection on which requests were written as they are."""
    connection = socket.create_connection(("127.0.0.1", model.port), timeout=10)
    for content in map(json.dumps, contents):
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{headers}content-length: {len(content)}\r\n\r\n"
        connection.sendall(head.encode() + content.encode())
    return connection


def said_by(answer: dict[str, Any]) -> Any:
    return [(one["message"], one["finish_reason"], one.get("token_ids"), one["logprobs"]) for one in answer["choices"]]


@pytest.mark.process
def test_the_same_conversation_gets_the_same_answer_in_any_order_and_process() -> None:
    asked = [f"question {i}" for i in range(12)]
    more: dict[str, Any] = {"tools": [ADD, STOP], "logprobs": True, "return_token_ids": True}
    with MockModel(seed=1) as one:
        first = [said_by(ask(one.url, said, **more)) for said in asked]
        again = [said_by(ask(one.url, said, **more)) for said in reversed(asked)]
    with MockModel.process(seed=1) as other:
        elsewhere = [said_by(ask(other.url, said, **more)) for said in asked]
    with MockModel(seed=2) as another:
        different = [said_by(ask(another.url, said, **more)) for said in asked]
    assert first == again[::-1] == elsewhere
    assert first != different


@pytest.mark.parametrize("text", ['["first", {"add": {"amount": 3}}]', '"first"\n\n{"add": {"amount": 3}}\n'])
def test_a_script_in_a_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "answers"
    file.write_text(text)
    with MockModel(file) as model:
        assert ask(model.url)["choices"][0]["message"]["content"] == "first"
        second = ask(model.url, "hello", {"role": "assistant", "content": "first"}, "go on")
        assert second["choices"][0]["message"]["tool_calls"][0]["function"] == {
            "name": "add",
            "arguments": '{"amount":3}',
        }


def test_a_function_as_script_plain_and_async() -> None:
    def plain(request: ChatRequest) -> str:
        return f"{request.turn} {request.attempt} {request.cid} {request.path} {request.last_text}"

    async def later(request: ChatRequest) -> dict[str, Any]:
        await asyncio.sleep(0.01)
        return {"add": {"amount": request.rng().randint(1, 3)}}

    with MockModel(plain) as model:
        answers = [
            CLIENT.post(f"{model.root}/rollouts/r-7/v1/chat/completions?cid=trace_1", json=body("hi")).json()
            for _ in range(2)
        ]
        path = "/rollouts/r-7/v1/chat/completions"
        assert [one["choices"][0]["message"]["content"] for one in answers] == [
            f"0 {i} trace_1 {path} hi" for i in (0, 1)
        ]
        assert [(kept.path, kept.query, kept.cid, kept.attempt) for kept in model.requests] == [
            (path, "cid=trace_1", "trace_1", 0),
            (path, "cid=trace_1", "trace_1", 1),
        ]
    with MockModel(later) as model:
        assert ask(model.url, "hi", tools=[ADD])["choices"][0]["finish_reason"] == "tool_calls"


def test_script_that_raises_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    def broken(request: ChatRequest) -> Any:
        return {"add": 1} if request.last_text == "form" else 1 / 0

    async def broken_later(request: ChatRequest) -> Any:
        raise KeyError("gone")

    for script, error in ((broken, "ZeroDivisionError"), (broken_later, "KeyError")):
        with MockModel(script) as model, caplog.at_level(logging.ERROR):
            answer = chat(model, "hi")
            assert answer.status_code == 500 and error in answer.json()["error"]["message"]
            assert model.stats["script_errors"] == 1 and error in caplog.text
    with MockModel(broken) as model:
        assert "is invalid" in chat(model, "form").json()["error"]["message"]


@pytest.mark.parametrize(
    ("script", "more"),
    [
        (None, {"behaviour": "ecko"}),
        (["a"], {"behaviour": "echo"}),
        ([], {}),
        ([7], {}),
        ("none.json", {}),
        ("no.json", {}),
        (None, {"latency_seconds": -1.0}),
        (None, {"latency_seconds": (2.0, 1.0)}),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, script: Any, more: dict[str, Any]) -> None:
    (tmp_path / "no.json").write_text("[1")
    with pytest.raises(ConfigError):
        MockModel(tmp_path / script if isinstance(script, str) else script, **more)


def test_weight_version_is_sent_and_may_change() -> None:
    with MockModel(weight_version="step-1") as model:
        assert ask(model.url)["metadata"] == {"weight_version": "step-1"}
        assert CLIENT.post(f"{model.root}/update_weight_version", json={"new_version": "step-2"}).status_code == 200
        assert ask(model.url)["metadata"] == {"weight_version": "step-2"} and model.weight_version == "step-2"
        model.weight_version = None
        assert "metadata" not in ask(model.url)


def test_models_health_completions_and_unknown_routes() -> None:
    with MockModel(models=("small", "large")) as model:
        assert [card["id"] for card in CLIENT.get(f"{model.url}/models").json()["data"]] == ["small", "large"]
        assert CLIENT.get(f"{model.root}/health").json() == {"status": "ok"}
        refused = chat(model)
        assert refused.status_code == 404 and refused.json()["error"]["code"] == "model_not_found"
        answer = CLIENT.post(
            f"{model.url}/completions", json={"model": "small", "prompt": "Once", "max_tokens": 5}
        ).json()
        assert answer["choices"][0]["finish_reason"] == "length" and answer["usage"] == {
            "prompt_tokens": 4,
            "completion_tokens": 5,
            "total_tokens": 9,
        }
        assert CLIENT.get(f"{model.url}/chat/completions").status_code == 405
        assert CLIENT.get(f"{model.root}/elsewhere").status_code == 404
        assert CLIENT.head(f"{model.url}/models").content == b""


def test_what_is_not_a_request(random_model: MockModel) -> None:
    url = f"{random_model.url}/chat/completions"
    for content in (b"{", b"[]", b"", b'{"a": NaN}'):
        assert CLIENT.post(url, content=content).status_code == 400
    assert CLIENT.post(url, content=b"{}", headers={"content-encoding": "gzip"}).status_code == 415
    with socket.create_connection(("127.0.0.1", random_model.port)) as raw:
        raw.sendall(b"hello\r\n\r\n")
        got = b""
        while piece := raw.recv(1000):
            got += piece
        assert got.startswith(b"HTTP/1.1 400 ") and got.endswith(b"this is not HTTP/1.1")


# keys and records


def test_the_key_is_asked_for_and_watched_texts_are_counted() -> None:
    with MockModel(api_key="k-right", watch=("environment-key-7", "k-right")) as model:
        for headers, status in (
            ({}, 401),
            ({"authorization": "Bearer k-wrong"}, 401),
            ({"authorization": "Bearer k-right"}, 200),
        ):
            answer = CLIENT.post(f"{model.url}/chat/completions", json=body(), headers=headers)
            assert answer.status_code == status and "k-right" not in answer.text
        assert model.stats["watched"] == [0, 1]
        CLIENT.post(f"{model.url}/chat/completions", json=body("my environment-key-7"))
        CLIENT.post(f"{model.url}/chat/completions?key=environment-key-7", json=body())
        CLIENT.post(f"{model.url}/chat/completions", json=body(), headers={"X-API-Key": "environment-key-7"})
        assert model.stats["watched"] == [3, 1]
        assert CLIENT.get(f"{model.root}/mock/stats").json()["watched"] == [3, 1]
        kept = model.requests
        assert [one.header("Authorization") for one in kept[:3]] == [None, "Bearer k-wrong", "Bearer k-right"]
        assert kept[-1].header("x-api-key") == "environment-key-7" and kept[2].status == 200
        assert "k-right" not in repr(kept) and "environment-key-7" not in repr(kept[-1])


def test_records_are_bounded_and_counts_are_not(random_model: MockModel) -> None:
    with MockModel(record=3) as model, httpx.Client() as client:
        for i in range(5):
            ask(model.url, f"q{i}", client=client)
        assert [one.body["messages"][0]["content"] for one in model.requests] == ["q2", "q3", "q4"]
        stats = CLIENT.get(f"{model.root}/mock/stats").json()
        assert (stats["requests"], stats["answers"], stats["in_flight"], stats["connections"]) == (5, 5, 0, 2)
        assert len(model.requests) == 3


# faults, as a client sees them


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "error"),
    [("reset_early", httpx.ReadError), ("reset_late", httpx.ReadError), ("truncated", httpx.RemoteProtocolError)],
)
def test_broken_connections(kind: str, error: type[Exception], stream: bool) -> None:
    with MockModel(faults=Faults(sequence=(kind,))) as model, httpx.Client() as client:
        got = b""
        with (
            pytest.raises(error) as caught,
            client.stream("POST", f"{model.url}/chat/completions", json=body(stream=stream)) as answer,
        ):
            assert kind != "reset_early" and answer.status_code == 200
            for piece in answer.iter_raw():
                got += piece
        assert bool(got) == (kind != "reset_early")
        assert ("reset by peer" in str(caught.value).lower()) == (error is httpx.ReadError)
        assert chat(model, stream=stream).status_code == 200


def test_resets_are_resets_on_the_wire() -> None:
    failing = MockModel(faults=Faults({"reset_early": 1.0}))
    with failing as model, sent(model, body()) as raw, pytest.raises(ConnectionResetError):
        raw.recv(100)


def test_a_hanging_answer_lasts_until_the_client_goes() -> None:
    with MockModel(faults=Faults(sequence=("hang",))) as model:
        with pytest.raises(httpx.ReadTimeout):
            CLIENT.post(f"{model.url}/chat/completions", json=body(), timeout=0.3)
        until(lambda: model.stats["abandoned"] == 1)
        assert model.stats["in_flight"] == 0
        assert chat(model).status_code == 200


def test_a_redirect_and_who_follows_it() -> None:
    with MockModel(faults=Faults(sequence=("redirect", "redirect"))) as model:
        answer = chat(model)
        assert answer.status_code == 302 and answer.headers["location"].startswith("/redirected/")
        assert model.stats["redirects_followed"] == 0
        CLIENT.post(
            f"{model.url}/chat/completions", json=body(), follow_redirects=True, headers={"authorization": "Bearer k"}
        )
        assert model.stats["redirects_followed"] == 1 and model.requests[-1].method == "GET"
    with MockModel(faults=Faults({"redirect": 1.0}, redirect_to="http://127.0.0.1:1/v1")) as model:
        assert chat(model).headers["location"] == "http://127.0.0.1:1/v1"


def test_a_connection_closed_behind_a_good_answer() -> None:
    with MockModel(faults=Faults(sequence=("close",))) as model, sent(model, body()) as raw:
        head, _, content = raw.makefile("rb").read().partition(b"\r\n\r\n")
        assert b"connection: close" not in head and json.loads(content)["choices"]


# the connection


def test_many_at_once_with_latency() -> None:
    async def ask_all() -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with MockModel(latency_seconds=0.2) as model, aiohttp.ClientSession(connector=connector) as session:
            url = f"{model.url}/chat/completions"
            answers = await asyncio.gather(*(session.post(url, json=body(f"q{i}")) for i in range(300)))
            assert {answer.status for answer in answers} == {200}
            assert model.records.most_in_flight > 100

    asyncio.run(ask_all())


def test_pipelined_requests_are_answered_in_order() -> None:
    questions = [f"<{i}>" for i in range(100)]
    with (
        MockModel(behaviour="echo", latency_seconds=0.001) as model,
        sent(model, *(body(question) for question in questions)) as raw,
    ):
        got = b""
        while got.count(b'"usage"') < 100 or not got.endswith(b"}"):
            got += raw.recv(65536)
        assert re.findall(r"<\d+>", got.decode()) == questions


def test_who_waits_to_continue_is_told_to() -> None:
    with MockModel() as model, sent(model, body(), headers="expect: 100-continue\r\nconnection: close\r\n") as raw:
        assert raw.makefile("rb").read().startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")


# its life


def test_a_busy_port_is_a_sentence_and_a_model_may_run_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(ConfigError, match="Port "):
        MockModel(port=other.getsockname()[1]).start()
    model = MockModel(behaviour="echo")
    for _ in range(2):
        with model:
            ask(model.url)
            with pytest.raises(ConfigError, match="already"):
                model.start()
    assert model.stats["requests"] == 2
    model.close()
    with pytest.raises(httpx.ConnectError):
        chat(model)


def test_closing_ends_what_hangs_and_leaves_no_thread() -> None:
    before = threading.active_count()
    model = MockModel(faults=Faults({"hang": 1.0})).start()
    with sent(model, body()) as raw:
        until(lambda: model.records.in_flight == 1)
        model.close()
        with contextlib.suppress(ConnectionResetError):
            assert raw.recv(10) == b""
    assert threading.active_count() == before
