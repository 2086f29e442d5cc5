"""The model client against a real model server: right answers, or the reason why not, within the time that is given."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.config import Settings
from taskapp_kit.rollout.models.attempts import ConcurrencyLimiter
from taskapp_kit.rollout.models.client import HttpModelClient
from taskapp_kit.rollout.models.model_settings import ModelNames, NamedModel, Price
from taskapp_kit.testing import Faults, MockModel
from taskapp_kit.wire.chat.conversation import ChatReply, Endpoint, ModelFailed
from taskapp_kit.wire.inference_url import complete_url
from tests.rollout.models.raw_server import http, raw_server, said
from tests.waiting import until_async

pytestmark = [pytest.mark.server, pytest.mark.anyio]

DOOR, ALIAS, DEV = "door-key-0123456789", "alias-key-0123456789", "dev-key-0123456789"
OPENAI = "sk-openai-0123456789"
SETTINGS = Settings(
    environment_api_key=DOOR,
    environment_api_key_aliases=(ALIAS,),
    dev_environment_api_key=DEV,
    variables={"OPENAI_API_KEY": OPENAI},
)
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "temperature": 1.0}
LOOPS = [("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})]


@asynccontextmanager
async def model_client(settings: Settings = SETTINGS, **more: Any) -> AsyncIterator[HttpModelClient]:
    """A client whose waits are short."""

    async def brief(seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.002))

    client = HttpModelClient("local", settings, **{"sleep": brief, "rng": random.Random(0), **more})
    try:
        yield client
    finally:
        await client.close()


def at(model: MockModel, **more: Any) -> Endpoint:
    return Endpoint(complete_url(more.pop("url", model.url)), **{"model": "m", **more})


async def ask(endpoint: Endpoint, body: dict[str, Any] = BODY, *, seconds: float = 20.0, **more: Any) -> ChatReply:
    async with model_client(**more) as client:
        return await client.chat(endpoint, body, seconds=seconds)


async def failing(endpoint: Endpoint, body: dict[str, Any] = BODY, **more: Any) -> ModelFailed:
    with pytest.raises(ModelFailed) as caught:
        await ask(endpoint, body, **more)
    return caught.value


@pytest.mark.parametrize("anyio_backend", LOOPS)
async def test_an_answer() -> None:
    with MockModel(["hello back"], weight_version="step-3") as model:
        reply = await ask(at(model), {**BODY, "return_token_ids": True, "logprobs": True})
        (request,) = model.requests
    assert reply.message["content"] == "hello back" and reply.finish_reason == "stop" and reply.model == "m"
    assert reply.token_ids and reply.logprobs and len(reply.token_ids) == len(reply.logprobs)
    assert reply.prompt_token_ids and reply.policy_version == "step-3"
    assert reply.usage["completion_tokens"] == len(reply.token_ids)
    assert (reply.attempts, reply.retries, reply.cached, reply.cost) == (1, [], False, None)
    assert 0 < reply.seconds < 5
    assert request.body == {"model": "m", **BODY, "return_token_ids": True, "logprobs": True}


# asked again


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("429", "rate_limited"), ("500", "server_error"), ("502", "server_error"), ("503", "overloaded"), ("408", "request_timeout"),
        ("reset_early", "dropped"), ("reset_late", "truncated"), ("truncated", "truncated"), ("malformed", "malformed"),
        ("content_type", "malformed"), ("error_200", "error_in_answer"), ("empty", "empty"),
    ],
)  # fmt: skip
async def test_transient_failure_is_retried(fault: str, kind: str) -> None:
    with MockModel(["right"], faults=Faults(sequence=[fault, fault])) as model:
        reply = await ask(at(model))
        assert len(model.requests) == 3
    assert reply.message["content"] == "right" and reply.attempts == 3
    assert [retry["kind"] for retry in reply.retries] == [kind, kind]
    assert not fault.isdecimal() or reply.retries[0]["status"] == int(fault)


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("400", "model_refused"),
        ("401", "model_refused"),
        ("404", "model_refused"),
        ("uneven", "token_mismatch"),
        ("redirect", "model_redirected"),
        ("context", "context_overflow"),
    ],
)
async def test_permanent_failure_is_not_retried(fault: str, code: str) -> None:
    with MockModel(["right"], faults=Faults({fault: 1.0})) as model:
        failed = await failing(at(model), {**BODY, "return_token_ids": True, "logprobs": True})
        assert len(model.requests) == 1 and model.stats["redirects_followed"] == 0
    assert (failed.failure.boundary, failed.failure.code) == ("policy", code)
    assert failed.overflow is (fault == "context")


async def test_a_connection_that_was_closed_meanwhile_costs_nothing_but_a_repetition() -> None:
    with MockModel(["right"], faults=Faults({"close": 1.0})) as model:
        async with model_client() as client:
            for _ in range(5):
                reply = await client.chat(at(model), BODY, seconds=5)
                assert reply.message["content"] == "right"


# time


@pytest.mark.parametrize("anyio_backend", LOOPS)
async def test_a_hanging_call_ends_with_the_time() -> None:
    with MockModel(["x"], faults=Faults({"hang": 1.0})) as model:
        began = time.monotonic()
        failed = await failing(at(model), seconds=0.3)
        took = time.monotonic() - began
    assert (failed.failure.boundary, failed.failure.code) == ("timeout", "deadline")
    assert 0.3 <= took < 60


async def test_an_attempt_that_hangs_is_given_up_before_the_time_is() -> None:
    with MockModel(["right"], faults=Faults(sequence=["hang"])) as model:
        reply = await ask(at(model), attempt_seconds=0.2)
    assert reply.message["content"] == "right" and reply.retries == [{"kind": "hung"}]


async def test_a_first_attempt_far_slower_than_all_others_is_given_up_once() -> None:
    with MockModel(["x"], faults=Faults(sequence=[None] * 130 + ["hang"])) as model:
        async with model_client(throttle=ConcurrencyLimiter(least_hang_timeout_seconds=0.3)) as client:
            for _ in range(130):
                await client.chat(at(model), BODY, seconds=5)
            reply = await client.chat(at(model), BODY, seconds=20)
    assert reply.retries == [{"kind": "hung"}] and reply.attempts == 2


@pytest.mark.parametrize(("fault", "less"), [("429", True), ("503", True), ("500", False)])
async def test_overloaded_host_gets_fewer_concurrent_calls(fault: str, less: bool) -> None:
    with MockModel(["x"], faults=Faults({fault: 1.0})) as model:
        async with model_client(throttle=ConcurrencyLimiter(first_limit=8)) as client:
            for _ in range(4):
                with pytest.raises(ModelFailed):
                    await client.chat(at(model), BODY, seconds=20)
            limit = client.throttle.host(f"http://127.0.0.1:{model.port}").limit
    assert limit < 4 if less else limit == 8


async def test_retry_after_is_waited_for() -> None:
    slept: list[float] = []

    async def note(seconds: float) -> None:
        slept.append(seconds)

    with MockModel(["right"], faults=Faults(sequence=["429"], retry_after_seconds=7)) as model:
        assert (await ask(at(model), sleep=note)).attempts == 2
    assert 7 <= slept[0] <= 8


async def test_waiting_for_a_place_counts() -> None:
    with MockModel(["x"], latency_seconds=0.6) as model:
        async with model_client() as client:
            await client.chat(at(model), BODY, seconds=5)
            client.throttle.host(f"http://127.0.0.1:{model.port}").limit = 1.0
            good, late = await asyncio.gather(
                *(client.chat(at(model), BODY, seconds=seconds) for seconds in (5, 0.2)), return_exceptions=True
            )
    assert isinstance(good, ChatReply)
    assert isinstance(late, ModelFailed) and late.failure.boundary == "timeout"
    assert "too many calls" in late.failure.message


async def test_a_cancelled_call_is_gone_at_once() -> None:
    with MockModel(["x"], faults=Faults({"hang": 1.0})) as model:
        async with model_client() as client:
            task = asyncio.create_task(client.chat(at(model), BODY, seconds=60))
            await until_async(lambda: model.requests)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert client.throttle.host(f"http://127.0.0.1:{model.port}").idle
            await until_async(lambda: model.stats["open_connections"] == 0)


# many


@pytest.mark.parametrize("anyio_backend", LOOPS)
async def test_many_at_once_under_faults_are_right_or_say_why_not() -> None:
    """Each answer belongs to its question; none is lost."""

    def echo(request: Any) -> str:
        return f"echo {request.messages[-1]['content']}"

    faults = Faults(
        {"429": 0.03, "500": 0.03, "503": 0.03, "reset": 0.03, "truncated": 0.03, "malformed": 0.03}, seed=4
    )

    with MockModel(echo, faults=faults, record=0) as model:
        async with model_client() as client:

            async def answer(number: int) -> Any:
                body = {"messages": [{"role": "user", "content": f"q{number}"}]}
                try:
                    return (await client.chat(at(model), body, seconds=30)).message["content"]
                except ModelFailed as failed:
                    return failed

            found = await asyncio.gather(*(answer(number) for number in range(600)))
            connections: Any = model.stats["connections"]
            assert client.throttle.host(f"http://127.0.0.1:{model.port}").idle
    failures = [each for each in found if isinstance(each, ModelFailed)]
    assert len(failures) <= 3
    for number, each in enumerate(found):
        assert isinstance(each, ModelFailed) or each == f"echo q{number}"
    assert connections < 600


def test_client_works_on_successive_event_loops() -> None:
    with MockModel(["right"]) as model:
        client = HttpModelClient("local", SETTINGS)

        async def once() -> str:
            reply = await client.chat(at(model), BODY, seconds=5)
            await client.close()
            return str(reply.message["content"])

        assert [asyncio.run(once()) for _ in range(2)] == ["right", "right"]


# keys


async def test_whose_key_arrives() -> None:
    with MockModel(["x"], watch=(DOOR, ALIAS, DEV, OPENAI)) as model:
        keys_for = Settings(
            environment_api_key=DOOR,
            variables={"MY_KEY": "sk-mine-1"},
            inference_keys_for=(f"127.0.0.1:{model.port}=MY_KEY",),
        )
        (await ask(at(model)))
        (await ask(at(model, key="sk-the-callers")))
        (await ask(at(model), settings=keys_for))
        (await ask(at(model, key="sk-the-callers"), settings=keys_for))
        assert [request.header("authorization") for request in model.requests] == [
            None, "Bearer sk-the-callers", "Bearer sk-mine-1", "Bearer sk-the-callers",
        ]  # fmt: skip
        assert model.stats["watched"] == [0, 0, 0, 0]


@pytest.mark.parametrize("door", [DOOR, ALIAS, DEV])
async def test_a_key_to_the_door_is_never_sent(door: str) -> None:
    with MockModel(["x"], watch=(DOOR, ALIAS, DEV)) as model:
        for endpoint in (
            at(model, key=door),
            at(model, key=f" Bearer {door}"),
            at(model, url=f"{model.url}?key={door}"),
            at(model, url=f"{model.url}?key={door.replace('-', '%2d')}"),
        ):
            failed = await failing(endpoint)
            assert failed.failure.code == "key_refused" and door not in failed.failure.message
        by_digest = await failing(at(model, key="from-a-file"), is_server_key=lambda text: text == "from-a-file")
        keys_for = Settings(
            environment_api_key=door, variables={"MY_KEY": door}, inference_keys_for=(f"127.0.0.1:{model.port}=MY_KEY",)
        )
        assert by_digest.failure.code == (await failing(at(model), settings=keys_for)).failure.code == "key_refused"
        assert model.stats["watched"] == [0, 0, 0] and model.requests == []


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422, 429, 500, 200])
async def test_no_message_repeats_a_key_or_the_query(status: int) -> None:
    key, query = "sk-used-0123456789", "token=query-0123456789"
    texts = (
        f"Incorrect API key provided: {key}",
        f"wrong: {key[:9]}…",
        f"{key[-8:]}",
        " ".join(key),
        f"{DOOR} {OPENAI}",
    )

    for text in texts:
        async with raw_server([http(status, {"error": {"message": text}})]) as server:
            failed = await failing(Endpoint(f"{server.url}?{query}", "m", key))
        told = f"{failed.failure} {failed!r} {failed.__cause__!r} {failed.__context__!r}".replace(" ", "")
        for secret in (key, query, DOOR, OPENAI):
            parts = {secret[start : start + 6] for start in range(len(secret) - 5)}
            assert not [part for part in parts if part in told], text


@pytest.mark.parametrize("own", [True, False])
async def test_a_key_that_the_model_repeats_is_taken_out(
    own: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An endpoint that puts the Authorization header into its answer of 200, in every member that is read."""
    key = "sk-AbC123dEf456GhI789"
    call = {"id": key, "type": "function", "function": {"name": key, "arguments": f'{{"say": "{key[4:]}"}}'}}
    choice = {
        "message": {"content": f"You sent Bearer {key}.", "reasoning_content": [key], "tool_calls": [call], key: 1},
        "finish_reason": key,
        "token_ids": [1, 2],
        "logprobs": {"content": [{"token": key, "logprob": -1.0}, {"token": "x", "logprob": -1.0}]},
    }
    answer = {"choices": [choice], "model": key, "usage": {key: 3}, "policy_version": key, "prompt_token_ids": [5]}

    keys_for = ("127.0.0.1=THEIR_KEY",) if own else ()
    settings = Settings(variables={"THEIR_KEY": key}, inference_keys_for=keys_for, cache=tmp_path)
    async with raw_server([http(200, answer)]) as server, model_client(settings) as client:
        endpoint = Endpoint(server.url, "m", None if own else key, cache=True)
        replies = [await client.chat(endpoint, BODY, seconds=20.0) for _ in range(2)]
        assert server.requests[0].headers["authorization"] == f"Bearer {key}"
    assert [reply.cached for reply in replies] == [False, True]
    kept = "".join(path.read_text() for path in tmp_path.rglob("*.json")) + caplog.text
    for told in (*map(str, replies), kept):
        assert not any(key[start : start + 12] in told for start in range(len(key) - 11))
    for reply in replies:
        assert reply.message["content"] == "You sent Bearer (key)."
        assert (reply.token_ids, reply.logprobs, reply.prompt_token_ids) == (None, None, None)


async def test_short_key_is_not_masked_in_replies() -> None:
    with MockModel(["The room is EMPTY."]) as model:
        assert (await ask(at(model, key="EMPTY"))).message["content"] == "The room is EMPTY."


@pytest.mark.parametrize("key", ["sk-1\r\nX-Other: y", "sk-ü", "sk\x00"])
async def test_a_key_that_is_no_key(key: str) -> None:
    with MockModel(["x"]) as model:
        assert (await failing(at(model, key=key))).failure.code == "key_refused" and model.requests == []


@pytest.mark.parametrize("value", ["\ud800", 2**70, float, {1: 2}])
async def test_a_request_that_is_no_json(value: Any) -> None:
    with MockModel(["x"]) as model:
        assert (
            await failing(at(model), {**BODY, "x": value})
        ).failure.code == "request_not_json" and model.requests == []


# the rest


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("nonsense", "invalid_address"),
        ("http://u:p@h/", "invalid_address"),
        ("http://169.254.169.254/v1", "address_refused"),
    ],
)
async def test_addresses_are_judged_here_too(url: str, code: str) -> None:
    assert (await failing(Endpoint(url))).failure.code == code


async def test_a_public_server_calls_loopback_only_where_it_is_allowed() -> None:
    with MockModel(["x"]) as model:
        client = HttpModelClient("public", Settings())
        with pytest.raises(ModelFailed) as caught:
            await client.chat(at(model), BODY, seconds=5)
        assert caught.value.failure.code == "address_refused"
        assert model.stats["connections"] == 0
        allowed = HttpModelClient("public", Settings(inference_allow=("127.0.0.1",)))
        assert (await allowed.chat(at(model), BODY, seconds=5)).message["content"] == "x"
        await allowed.close()


async def test_the_cache_answers_where_it_may(tmp_path: Path) -> None:
    settings = Settings(cache=tmp_path)
    with MockModel(["x"]) as model:
        replies = [(await ask(at(model, cache=True), settings=settings)) for _ in range(2)]
        assert [reply.cached for reply in replies] == [False, True] and len(model.requests) == 1
        assert replies[0].message == replies[1].message and replies[0].usage == replies[1].usage
        assert not (await ask(at(model), settings=settings)).cached
        assert not (await ask(at(model, cache=True), {**BODY, "temperature": 0.5}, settings=settings)).cached
        assert not (await ask(at(model, cache=True))).cached
        assert len(model.requests) == 4


async def test_failures_are_not_cached(tmp_path: Path) -> None:
    with MockModel(["x"], faults=Faults(sequence=["400"])) as model:
        (await failing(at(model, cache=True), settings=Settings(cache=tmp_path)))
        assert (await ask(at(model, cache=True), settings=Settings(cache=tmp_path))).message["content"] == "x"


async def test_cost() -> None:
    with MockModel(["x"]) as model:
        named = NamedModel("n", model.url, "m", None, Price(1e6, 0.0, 2e6))
        reply = await ask(at(model), model_names=ModelNames({"n": named}))
        assert reply.cost == pytest.approx(reply.usage["prompt_tokens"] + 2 * reply.usage["completion_tokens"])

    async with raw_server([http(200, said(usage={"prompt_tokens": 1, "cost": 0.25}))]) as server:
        assert (await ask(Endpoint(server.url))).cost == 0.25


async def test_without_a_model_none_is_named() -> None:
    async with raw_server([http(200, said())]) as server:
        await ask(Endpoint(server.url), {"messages": []})
    assert server.requests[0].body == b'{"messages":[]}'
