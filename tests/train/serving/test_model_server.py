"""The application of a serving process, on a real server, with a scripted sampler behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from taskapp_kit.serve.uvicorn_server import BackgroundServer
from taskapp_kit.train.serving.model_server import ModelServer
from taskapp_kit.wire.inference_url import SERVED_HERE
from tests.train.gateway.peers import RENDERER, USER, ScriptedSampler, code_of
from tests.waiting import until, until_async

pytestmark = pytest.mark.server

NAME = "rl:tiny:job_1:checkpoint-2"
KEY = "sentinel-Key-of-the-serving-process"


@contextmanager
def served(sampler: ScriptedSampler, context_tokens: int = 4096) -> Iterator[httpx.Client]:
    """A client of a running server; it has the key."""
    server = ModelServer(NAME, sampler, RENDERER, context_tokens=context_tokens)
    with (
        BackgroundServer(server.behind(KEY)) as running,
        httpx.Client(
            base_url=f"{running.url}{SERVED_HERE}", headers={"Authorization": f"Bearer {KEY}"}, timeout=60
        ) as http,
    ):
        yield http


def chat(http: httpx.Client, **more: Any) -> httpx.Response:
    return http.post("/chat/completions", json={"model": NAME, "messages": [USER], **more})


def test_an_answer_is_sampled_as_the_client_says() -> None:
    sampler = ScriptedSampler(lambda call: "One. Two. Three.")
    with served(sampler) as http:
        answer = chat(http, temperature=0.3, max_tokens=5).json()
        assert answer["model"] == NAME
        assert answer["choices"][0]["message"]["content"] == "One. "
        assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 5)
        stopped = chat(http, stop=["Two"], top_p=1, presence_penalty=0, n=1).json()["choices"][0]
        assert (stopped["message"]["content"], stopped["finish_reason"]) == ("One. ", "stop")
        chat(http, temperature=0)
        chat(http, temperature=1e-9)
        listed = http.get("/models").json()
    assert [call.temperature for call in sampler.calls] == [0.3, 1.0, 0.0, 0.0]
    assert sampler.calls[1].max_tokens == 1024
    assert [model["id"] for model in listed["data"]] == [NAME]


def test_an_equal_seed_draws_the_same_and_none_draws_anew() -> None:
    sampler = ScriptedSampler()
    with served(sampler) as http:
        for more in ({"seed": 7}, {"seed": 7}, {"seed": 8}, {}, {}):
            assert chat(http, **more).status_code == 200
    draws = [call.draw for call in sampler.calls]
    assert draws[0] == draws[1]
    assert len(set(draws)) == 4


def test_responses_and_messages_are_answered_in_their_own_form() -> None:
    sampler = ScriptedSampler(lambda call: "Hello.")
    with served(sampler) as http:
        response = http.post("/responses", json={"model": NAME, "input": "Hi.", "temperature": 0.3}).json()
        asked = {"model": NAME, "messages": [USER], "max_tokens": 90}
        message = http.post("/messages", json={**asked, "temperature": 0.4}).json()
        streamed = http.post("/messages", json={**asked, "stream": True})
        refused = http.post("/messages", json={**asked, "model": "another"})
    assert response["output"][0]["content"][0]["text"] == message["content"][0]["text"] == "Hello."
    assert (response["model"], message["model"], message["type"]) == (NAME, NAME, "message")
    assert streamed.headers["content-type"].startswith("text/event-stream") and "message_stop" in streamed.text
    assert (refused.status_code, refused.json()["type"]) == (404, "error")
    assert [call.temperature for call in sampler.calls] == [0.3, 0.4, 1.0]


@pytest.mark.parametrize(
    "given",
    [
        {"temperature": -1}, {"temperature": 3}, {"temperature": True}, {"temperature": "0"}, {"top_p": 0.5},
        {"top_p": True}, {"top_k": 5}, {"min_p": 0.1}, {"frequency_penalty": 0.5}, {"repetition_penalty": 1.1},
        {"logit_bias": {"1": 5}}, {"seed": 1.5}, {"seed": True}, {"n": 2},
    ],
    ids=str,
)  # fmt: skip
def test_what_the_sampler_cannot_do_is_refused_by_name(given: dict[str, Any]) -> None:
    sampler = ScriptedSampler()
    with served(sampler) as http:
        answer = chat(http, **given)
    assert (answer.status_code, code_of(answer)) == (422, "invalid_request")
    assert next(iter(given)) in answer.json()["error"]["message"]
    assert not sampler.calls


def test_what_is_no_call_of_this_model_is_refused_and_never_sampled() -> None:
    sampler = ScriptedSampler()
    with served(sampler, context_tokens=64) as http:
        answer = http.post("/chat/completions", content=b"{messages")
        assert (answer.status_code, code_of(answer)) == (422, "invalid_json")
        long = chat(http, messages=[{"role": "user", "content": "x" * 64}])
        assert (long.status_code, code_of(long)) == (422, "context_length_exceeded")
        other = chat(http, model="rl:tiny:job_2:checkpoint-2")
        assert (other.status_code, code_of(other)) == (404, "model_not_found")
        for verb, path, status in (("GET", "/chat/completions", 405), ("POST", "/models", 405), ("GET", "/x", 404)):
            assert http.request(verb, path).status_code == status
    assert not sampler.calls


def test_without_the_key_nothing_is_answered() -> None:
    sampler = ScriptedSampler()
    with served(sampler) as http:
        for headers in ({}, {"Authorization": f"Bearer {KEY}x"}, {"Authorization": f"Basic {KEY}"}, {"Cookie": KEY}):
            for verb, path in (("POST", "/chat/completions"), ("GET", "/models"), ("GET", "/health")):
                with httpx.Client(base_url=http.base_url, headers=headers) as stranger:
                    answer = stranger.request(verb, path, content=b"{" * 5000 if verb == "POST" else None)
                assert (answer.status_code, code_of(answer)) == (401, "unauthorised")
                assert KEY[:12] not in answer.text
    assert not sampler.calls


def test_a_client_that_hangs_up_frees_its_place_at_once() -> None:
    sampler = ScriptedSampler(held=True)

    async def hang_up(http: httpx.Client) -> None:
        async with httpx.AsyncClient(base_url=http.base_url, headers=http.headers) as other:
            asking = asyncio.ensure_future(other.post("/chat/completions", json={"messages": [USER]}))
            await until_async(lambda: sampler.calls)
            asking.cancel()
            await asyncio.wait((asking,))

    with served(sampler) as http:
        asyncio.run(hang_up(http))
        until(lambda: sampler.cancelled == 1, 20)
        sampler.release()
        assert chat(http).status_code == 200
