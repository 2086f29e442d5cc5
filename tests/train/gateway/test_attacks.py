"""What reaches the gateway from anybody: bodies, addresses, and the token that must not come out again."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.errors import RequestError
from taskapp_kit.net.redact import holds_key
from taskapp_kit.train.gateway.call_reader import read_call
from taskapp_kit.train.gateway.gateway_server import MAX_BODY_BYTES, CapabilityIssuer, Gateway
from taskapp_kit.wire.inference_url import inference_url, stored_url
from tests.train.gateway.peers import RENDERER, SETTINGS, USER, ScriptedSampler, attempt_client, code_of

LEAST = 12
"""Of the token's 48 hexadecimal digits; fewer are in a digest by chance."""


@given(st.integers(0, 2**40))
def test_a_token_names_its_attempt_for_its_own_gateway_only(number: int) -> None:
    ours, others = CapabilityIssuer(), CapabilityIssuer()
    token = ours.issue(number)
    assert ours.read(token) == number
    assert others.read(token) is None
    assert len({ours.issue(number + step) for step in range(10)}) == 10


@given(st.text(max_size=80), st.integers(0, 60))
def test_no_other_text_is_a_token(text: str, at: int) -> None:
    ours = CapabilityIssuer()
    token = ours.issue(7)
    inserted = token[:at] + text + token[at + len(text) :]
    for guess in (text, inserted, token.upper(), f"0{token}", f"+{token}", f"{token} "):
        assert guess == token or ours.read(guess) is None


@pytest.mark.parametrize("number", [0, 9, 15, 2**40])
def test_addresses_are_stored_without_the_token(number: int) -> None:
    token = CapabilityIssuer().issue(number)
    url = f"http://127.0.0.1:8/r/{token}/v1"
    assert stored_url(url) == "http://127.0.0.1:8/r/(hidden)/v1"
    assert stored_url(f"http://h/gate/r/{token}?x=1") == "http://h/gate/r/(hidden)"
    assert inference_url({"inference_url": url}, None) == "http://127.0.0.1:8/r/(hidden)/v1"
    config = {"inference_url": f"{url}/chat/completions", "trace_correlation_id": "job 1/7"}
    assert inference_url(config, None) == "http://127.0.0.1:8/r/job%201%2F7/v1/chat/completions"
    assert stored_url("http://h/r/v1") == "http://h/r/v1"


OUTSIDE = ("", "/", "/v1/chat/completions", "/r//v1/chat/completions", "/health", "/docs", "/r/x")
"""Paths without a token."""
OTHER_ROUTES = ("models", "chat", "chat/completions/", "../admin", "responses/x", "messages/count_tokens")


@pytest.mark.anyio
@pytest.mark.server
async def test_an_address_opens_its_attempt_while_that_is_open_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    sampler, body = ScriptedSampler(), {"messages": [USER]}
    headers = {"authorization": "Bearer sentinel-key"}
    texts: list[str] = []

    async def refused(method: str, url: str, status: int, code: str) -> None:
        response = await http.request(method, url, json=body, headers=headers)
        assert (response.status_code, code_of(response)) == (status, code), url
        texts.append(f"{response.headers}{response.text}")

    with (
        Gateway(sampler, RENDERER, max_open_attempts=4) as gateway,
        Gateway(sampler, RENDERER, max_open_attempts=1) as other,
    ):
        async with (
            httpx.AsyncClient(timeout=60) as http,
            gateway.attempt("cid-a", draw="a", settings=SETTINGS) as attempt,
            gateway.attempt("cid-b", draw="b", settings=SETTINGS) as ended,
            other.attempt("cid-c", draw="c", settings=SETTINGS) as foreign,
        ):
            root, token = attempt.url.partition("/r/")[0], attempt.token
            guesses = (foreign.token, token[:-1], token.upper(), "0", "-", "a-b", "0-" + "0" * 48)
            for path in (*OUTSIDE, *(f"/r/{guess}/v1/chat/completions" for guess in guesses)):
                await refused("POST", f"{root}{path}", 404, "not_found")
            for path in ("", "/v2/chat/completions", *(f"/v1/{route}" for route in OTHER_ROUTES)):
                await refused("POST", f"{root}/r/{token}{path}", 404, "not_found")
            await refused("GET", f"{attempt.url}/chat/completions", 405, "method_not_allowed")
            texts.append((await http.post(f"{attempt.url}/chat/completions", json=body)).text)
            texts.append(repr(attempt) + repr(attempt.record()))
        async with httpx.AsyncClient(timeout=60) as http:
            for route in ("chat/completions", "completions", "models"):
                await refused("POST", f"{ended.url}/{route}", 410, "attempt_ended")
    assert len(sampler.calls) == 1
    logged = [each.getMessage() for each in caplog.records if not each.name.startswith(("httpx", "httpcore"))]
    shown = "\n".join([*texts, *logged])  # the test's own client logs its addresses
    for each in (attempt, ended, foreign):
        assert not holds_key(shown, each.token.partition("-")[2], LEAST)
    assert "sentinel-key" not in shown


@pytest.mark.anyio
@pytest.mark.server
async def test_a_token_in_a_body_becomes_the_correlation_id() -> None:
    """A task app may write its configuration into a prompt; tokens and records would keep it."""
    sampler = ScriptedSampler(lambda call: call.prompt[-40:])
    async with attempt_client(sampler, dataclasses.replace(SETTINGS, max_tokens=400)) as client:
        message = await client.message({"role": "user", "content": f"You are at {client.attempt.url}."})
        assert not holds_key(message["content"], client.attempt.token.partition("-")[2], LEAST)
        assert "/r/cid-1/v1" in sampler.calls[0].prompt
        assert client.attempt.token not in sampler.calls[0].prompt
    client.attempt.record()


@pytest.mark.anyio
@pytest.mark.server
async def test_a_connection_without_an_address_gets_no_websocket() -> None:
    async with attempt_client(ScriptedSampler()) as client:
        answer = await raw(
            client.attempt.url,
            "GET {path}/chat/completions HTTP/1.1\r\nhost: h\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nsec-websocket-version: 13\r\n\r\n",
        )
        assert answer.split(b" ", 2)[1] in (b"403", b"405"), answer


async def raw(url: str, request: str) -> bytes:
    """The first bytes of the answer to a request that is sent as it is, `{path}` replaced."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(request.replace("{path}", parts.path).encode())
    answer = await reader.read(4096)
    writer.close()
    return answer


def chat(**more: Any) -> bytes:
    return json.dumps({"messages": [USER], **more}).encode()


BAD_BODIES: dict[str, tuple[bytes, int, str]] = {
    "empty": (b"", 422, "invalid_json"),
    "no JSON": (b"{messages", 422, "invalid_json"),
    "a list": (b"[]", 422, "invalid_json"),
    "a name twice": (b'{"messages": [], "messages": []}', 422, "invalid_json"),
    "NaN": (b'{"temperature": NaN}', 422, "invalid_json"),
    "an integer beyond 64 bits": (b'{"seed": 99999999999999999999}', 422, "invalid_json"),
    "half a letter": (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 422, "invalid_json"),
    "deep": (b'{"messages": ' + b"[" * 5000 + b"]" * 5000 + b"}", 422, "invalid_json"),
    "no messages": (b"{}", 422, "invalid_request"),
    "messages of another kind": (chat(messages=["x"]), 422, "invalid_request"),
    "a role that is not": (chat(messages=[{"role": "root", "content": "x"}]), 422, "unsupported_message"),
    "a picture": (chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]), 422, "unsupported_message"),
    "two answers": (chat(n=2), 422, "invalid_request"),
    "alternatives": (chat(logprobs=True, top_logprobs=3), 422, "invalid_request"),
    "functions": (chat(functions=[{"name": "f"}]), 422, "invalid_request"),
    "no tokens": (chat(max_tokens=0), 422, "invalid_request"),
    "a fraction of tokens": (chat(max_tokens=1.5), 422, "invalid_request"),
    "true tokens": (chat(max_tokens=True), 422, "invalid_request"),
    "stop is a number": (chat(stop=5), 422, "invalid_request"),
    "an empty stop": (chat(stop=[""]), 422, "invalid_request"),
    "many stops": (chat(stop=["x"] * 100), 422, "invalid_request"),
    "tools of another kind": (chat(tools=[{"type": "function"}]), 422, "invalid_request"),
    "tools with a nameless function": (chat(tools=[{"type": "function", "function": {"name": 5}}]), 422, "invalid_request"),
    "a model that is a number": (chat(model=5), 422, "invalid_request"),
    "options of the template that are a list": (chat(chat_template_kwargs=[]), 422, "invalid_request"),
    "thinking that is text": (chat(chat_template_kwargs={"enable_thinking": "no"}), 422, "invalid_request"),
    "a stream that is text": (chat(stream="yes"), 422, "invalid_request"),
}  # fmt: skip


@pytest.mark.anyio
@pytest.mark.server
async def test_bad_bodies_are_refused_and_never_sampled() -> None:
    sampler = ScriptedSampler()
    async with attempt_client(sampler) as client:
        url = f"{client.attempt.url}/chat/completions"
        for name, (body, status, code) in BAD_BODIES.items():
            response = await client.http.post(url, content=body, headers={"content-type": "application/json"})
            assert (response.status_code, code_of(response)) == (status, code), f"{name}: {response.text[:300]}"
            assert client.attempt.token not in response.text
        for prompt in (None, "", [], ["a", "b"], [[1], [2]], [1.5], [True], {"a": 1}):
            response = await client.post({"prompt": prompt}, "completions")
            assert (response.status_code, code_of(response)) == (422, "invalid_request"), prompt
        gzipped = await client.http.post(url, content=chat(), headers={"content-encoding": "gzip"})
        assert code_of(gzipped) == "unsupported_content_encoding"
        assert client.attempt.record().faithfulness.refused == len(BAD_BODIES) + 9
        deep = {"function": {"name": "f", "arguments": "[" * 2000}}  # not read as JSON, and shown as it is
        await client.chat(USER, {"role": "assistant", "tool_calls": [deep]}, USER)  # and the attempt goes on
    client.attempt.record()
    assert len(sampler.calls) == 1


@pytest.mark.anyio
@pytest.mark.server
async def test_a_body_that_is_too_long_is_refused_before_it_is_read() -> None:
    async with attempt_client(ScriptedSampler()) as client:
        head = f"content-type: application/json\r\ncontent-length: {MAX_BODY_BYTES + 1}"
        answer = await raw(client.attempt.url, f"POST {{path}}/chat/completions HTTP/1.1\r\nhost: h\r\n{head}\r\n\r\n")
        assert b" 413 " in answer
        assert b'"code":"body_too_large"' in answer


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
MEMBERS = st.sampled_from(
    ["messages", "prompt", "tools", "tool_choice", "max_tokens", "stop", "stream", "stream_options", "logprobs", "n", "response_format"]
)  # fmt: skip


@given(st.dictionaries(MEMBERS, JSON), st.booleans())
def test_any_json_is_a_call_or_a_request_error(body: dict[str, Any], well_formed: bool) -> None:
    if well_formed:
        body = {"messages": [USER], "prompt": "x", **body}
    for route in ("chat/completions", "completions"):
        try:
            read_call(route, body)  # type: ignore[arg-type]
        except RequestError as error:
            assert error.fields[0].loc[0] == "body"
