"""The gateway over HTTP: answers, records, forced sampling, limits, repeats, and hang-ups."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import select
import socket
import struct
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from taskapp_kit.config import Settings
from taskapp_kit.net.sse import SseReader
from taskapp_kit.rollout.models.client import HttpModelClient
from taskapp_kit.train.gateway.attempt import AttemptRecord, Faithfulness
from taskapp_kit.train.gateway.gateway_server import Gateway
from taskapp_kit.train.gateway.pace import Pace
from taskapp_kit.wire.chat.conversation import ChatReply, Endpoint, ModelFailed
from tests.train.gateway.peers import (
    END,
    RENDERER,
    SETTINGS,
    USER,
    Client,
    ScriptedSampler,
    attempt_client,
    code_of,
)
from tests.waiting import until_async

pytestmark = [pytest.mark.server, pytest.mark.anyio]

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "look", "arguments": {"far": true}}\n</tool_call>'
MORE = {"role": "user", "content": "And now?"}


async def test_a_call_is_answered_and_recorded() -> None:
    sampler = ScriptedSampler()
    async with attempt_client(sampler) as client:
        response = await client.post({"model": "any", "messages": [USER], "logprobs": True, "return_token_ids": True})
        body = response.json()
        choice = body["choices"][0]
        assert (body["object"], body["model"]) == ("chat.completion", "policy")
        assert choice["message"] == {"role": "assistant", "content": "Hi.", "refusal": None}
        assert choice["finish_reason"] == "stop"
        assert choice["token_ids"] == [*b"Hi.", END]
        assert body["prompt_token_ids"] == list(RENDERER.prompt([USER]))
        entries = choice["logprobs"]["content"]
        assert [entry["logprob"] for entry in entries] == [-0.5, -0.501, -0.502, -0.503]
        assert entries[0] == {"token": "H", "logprob": -0.5, "bytes": [72], "top_logprobs": []}
        assert body["usage"]["completion_tokens"] == 4
        assert body["metadata"] == {"weight_version": "3"}
    record = client.attempt.record()
    assert record.correlation_id == "cid-1"
    assert record.faithfulness == Faithfulness(exact=1)
    (turn,) = record.turns
    assert turn.prompt_ids == RENDERER.prompt([USER])
    assert turn.token_ids == (*b"Hi.", END)
    assert turn.log_probs == (-0.5, -0.501, -0.502, -0.503)
    assert (turn.version, turn.finish_reason, turn.seconds) == (3, "stop", 0.25)
    assert turn.delivered and turn.parent is None


async def test_a_conversation_keeps_the_tokens_that_were_sampled() -> None:
    """The second answer's tokens are no UTF-8, so no text stands for them."""
    answers: list[Any] = [" Hi ", (0xFF, 0xC3, END), "Bye."]
    sampler = ScriptedSampler(lambda call: answers[len(sampler.calls) - 1])
    async with attempt_client(sampler) as client:
        first = await client.message(USER)
        second = await client.message(USER, first, MORE)
        assert second["content"] == "\ufffd\ufffd"
        await client.message(USER, first, MORE, second, MORE)
    record = client.attempt.record()
    assert record.faithfulness == Faithfulness(exact=3)
    assert [turn.parent for turn in record.turns] == [None, 0, 1]
    for before, after in zip(record.turns, record.turns[1:], strict=False):
        assert after.prompt_ids[: len(before.ids)] == before.ids


async def test_clients_that_strip_continue_and_those_that_rewrite_fork() -> None:
    sampler = ScriptedSampler(lambda call: "  Hi.\n")
    async with attempt_client(sampler) as client:
        first = await client.message(USER)
        assert first["content"] == "  Hi.\n"
        stripped = {"role": "assistant", "content": "Hi."}
        await client.message(USER, stripped, MORE)
        await client.message(USER, {"role": "assistant", "content": "Hello."}, MORE)  # never sampled
        await client.message(USER, stripped, {"role": "user", "content": "Other."})  # a second one after the first turn
    record = client.attempt.record()
    assert record.faithfulness == Faithfulness(exact=1, continued=1, forked=2)
    assert [turn.parent for turn in record.turns] == [None, 0, None, 0]
    assert record.turns[1].prompt_ids[: len(record.turns[0].ids)] == record.turns[0].ids


async def test_tool_calls_come_and_go() -> None:
    answers = [f"Looking. {CALL}\n{CALL}", "A tree."]
    sampler = ScriptedSampler(lambda call: answers[len(sampler.calls) - 1])
    settings = dataclasses.replace(SETTINGS, max_tokens=400)
    async with attempt_client(sampler, settings) as client:
        choice = await client.chat(USER, tools=[TOOL])
        assert choice["finish_reason"] == "tool_calls"
        message = choice["message"]
        calls = message["tool_calls"]
        assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"far": True}] * 2
        assert len({call["id"] for call in calls}) == 2
        for call in calls:  # as a client that parses arguments writes them
            call["function"]["arguments"] = '{"far":true}'
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "a tree"} for call in calls]
        await client.chat(USER, message, *results, tools=[TOOL])
    record = client.attempt.record()
    assert [turn.finish_reason for turn in record.turns] == ["tool_calls", "stop"]
    assert record.faithfulness == Faithfulness(exact=2)
    assert "look" in sampler.calls[0].prompt
    assert sampler.calls[1].prompt.count("a tree") == 2


async def test_tool_choice_none_shows_no_tools() -> None:
    sampler = ScriptedSampler()
    async with attempt_client(sampler) as client:
        await client.chat(USER, tools=[TOOL], tool_choice="none")
    assert "look" not in sampler.calls[0].prompt


@pytest.mark.parametrize("stop", [" end", ["never", " end"]])
async def test_the_answer_ends_before_a_stop_text(stop: Any) -> None:
    """Recorded are the tokens up to the one that completes it: the policy chose them."""
    sampler = ScriptedSampler(lambda call: "The end of it")
    async with attempt_client(sampler) as client:
        choice = await client.chat(USER, stop=stop)
        assert (choice["message"]["content"], choice["finish_reason"]) == ("The", "stop")
        await client.chat(USER, choice["message"], MORE)
    first, second = client.attempt.record().turns
    assert first.token_ids == tuple(b"The end")
    assert len(first.log_probs) == len(first.token_ids)
    assert second.prompt_ids[: len(first.ids)] == first.ids


async def test_max_tokens_cuts_and_the_trainers_limit_is_the_most() -> None:
    sampler = ScriptedSampler(lambda call: "x" * 1000)
    async with attempt_client(sampler) as client:
        assert (await client.chat(USER, max_tokens=5))["finish_reason"] == "length"
        await client.chat(USER, max_completion_tokens=7, max_tokens=9)
        await client.chat(USER, max_tokens=5000)
        await client.chat(USER)
    record = client.attempt.record()
    assert [call.max_tokens for call in sampler.calls] == [5, 7, 64, 64]
    assert [turn.finish_reason for turn in record.turns] == ["length"] * 4


async def test_the_trainer_decides_how_to_sample() -> None:
    sampler = ScriptedSampler()
    async with attempt_client(sampler) as client:
        await client.chat(
            USER, temperature=0, top_p=0.5, seed=1, logit_bias={"5": 100}, response_format={"type": "json_object"}
        )
        await client.chat(MORE, temperature=None)
    record = client.attempt.record()
    assert [call.temperature for call in sampler.calls] == [0.7, 0.7]
    assert record.overridden == {"temperature": 1, "top_p": 1, "seed": 1}
    assert record.unenforced == {"logit_bias": 1, "response_format": 1}


def test_each_draw_is_named_by_the_attempt_and_the_prompt() -> None:
    """So neither the order of parallel calls nor a repeated attempt changes a draw."""
    sampler = ScriptedSampler()

    async def scenario(*messages: dict[str, Any]) -> list[str]:
        sampler.calls.clear()
        async with attempt_client(sampler) as client:
            for message in messages:
                await client.chat(message)
        return [call.draw for call in sampler.calls]

    draws = asyncio.run(scenario(USER, MORE, USER))
    assert len(set(draws)) == 3
    assert all(draw.startswith("job/0/0/") for draw in draws)
    assert asyncio.run(scenario(MORE, USER, USER)) == [draws[1], draws[0], draws[2]]


def frames(text: str) -> list[Any]:
    """The events of a stream without the last one, which has to be `[DONE]`."""
    *found, done = SseReader().feed(text.encode())
    assert done.data == "[DONE]"
    return [json.loads(frame.data) for frame in found]


async def test_a_stream_adds_up_to_the_answer() -> None:
    sampler = ScriptedSampler(lambda call: f"Look. {CALL}")
    settings = dataclasses.replace(SETTINGS, max_tokens=400)
    async with attempt_client(sampler, settings) as client:
        body = {"messages": [USER], "tools": [TOOL], "stream": True, "logprobs": True}
        response = await client.post({**body, "stream_options": {"include_usage": True}})
        assert response.headers["content-type"].startswith("text/event-stream")
    events, record = frames(response.text), client.attempt.record()
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[1]["content"] == "Look."
    assert deltas[1]["tool_calls"][0]["index"] == 0
    assert [event["choices"][0]["finish_reason"] for event in events[:-1]] == [None, None, "tool_calls"]
    assert len(events[1]["choices"][0]["logprobs"]["content"]) == len(record.turns[0].token_ids)
    assert events[-1]["usage"]["completion_tokens"] == len(record.turns[0].token_ids)
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert record.turns[0].delivered


async def test_completions_take_texts_and_ids() -> None:
    sampler = ScriptedSampler(lambda call: "b\nObservation: c")
    async with attempt_client(sampler) as client:
        first = await client.post({"prompt": "a", "stop": "\nObservation:", "logprobs": 0}, "completions")
        choice = first.json()["choices"][0]
        assert (first.json()["object"], choice["text"], choice["finish_reason"]) == ("text_completion", "b", "stop")
        assert len(choice["logprobs"]["token_logprobs"]) == len("b\nObservation:")
        assert choice["logprobs"]["text_offset"][:3] == [0, 1, 2]
        text = await client.post({"prompt": "ab\nObservation: 5", "max_tokens": 1, "stream": True}, "completions")
        assert [event["choices"][0]["text"] for event in frames(text.text)] == ["b", ""]
        turns = client.attempt.record().turns
        await client.post({"prompt": [*turns[1].ids, 65]}, "completions")
        await client.post({"prompt": [list(b"other")]}, "completions")
    record = client.attempt.record()
    assert [turn.parent for turn in record.turns] == [None, 0, 1, None]
    assert record.faithfulness == Faithfulness(exact=3, forked=1)
    assert record.turns[1].prompt_ids == (*record.turns[0].ids, *b" 5")
    assert record.turns[3].prompt_ids == tuple(b"other")


async def test_a_full_context_is_refused_as_clients_expect_it() -> None:
    sampler = ScriptedSampler(lambda call: "x" * 99)
    room = len(RENDERER.prompt([USER])) + 10
    settings = dataclasses.replace(SETTINGS, context_tokens=room)
    async with attempt_client(sampler, settings) as client:
        assert (await client.chat(USER))["finish_reason"] == "length"
        response = await client.post({"messages": [{**USER, "content": "x" * room}]})
        assert (response.status_code, code_of(response)) == (422, "context_length_exceeded")
        with pytest.raises(ModelFailed) as failed:
            await asked_by_the_kit(client, {"messages": [{**USER, "content": "x" * room}]})
        assert failed.value.overflow
    record = client.attempt.record()
    assert sampler.calls[0].max_tokens == 10
    assert record.faithfulness == Faithfulness(exact=1, refused=2)


async def asked_by_the_kit(client: Client, body: Any) -> ChatReply:
    models = HttpModelClient("local", Settings())
    try:
        return await models.chat(Endpoint(f"{client.attempt.url}/chat/completions", "m", "key"), body, seconds=30)
    finally:
        await models.close()


async def test_the_kits_own_client_reads_every_token() -> None:
    async with attempt_client(ScriptedSampler()) as client:
        reply = await asked_by_the_kit(client, {"messages": [USER], "logprobs": True, "return_token_ids": True})
        (turn,) = client.attempt.record().turns
        assert reply.token_ids == list(turn.token_ids)
        assert reply.logprobs == list(turn.log_probs)
        assert reply.prompt_token_ids == list(turn.prompt_ids)
        assert reply.policy_version == "3"


@pytest.mark.parametrize(("limit", "value"), [("max_calls", 2), ("max_sampled_tokens", 6)])
async def test_an_attempt_has_limits(limit: str, value: int) -> None:
    settings = dataclasses.replace(SETTINGS, **{limit: value})
    async with attempt_client(ScriptedSampler(), settings) as client:
        await client.chat(USER)
        await client.chat(MORE)
        response = await client.post({"messages": [USER]})
        assert (response.status_code, code_of(response)) == (410, "attempt_spent")
    record = client.attempt.record()
    assert sum(len(turn.token_ids) for turn in record.turns) <= 8
    assert record.faithfulness.refused == 1


async def test_further_attempts_wait_for_a_free_place() -> None:
    with Gateway(ScriptedSampler(), RENDERER, max_open_attempts=1) as gateway:
        opened: list[str] = []

        async def play(name: str) -> None:
            async with gateway.attempt(name, draw=name, settings=SETTINGS):
                opened.append(name)
                await asyncio.sleep(0)

        async with gateway.attempt("first", draw="first", settings=SETTINGS):
            second = asyncio.create_task(play("second"))
            third = asyncio.create_task(play("third"))
            await asyncio.sleep(0)
            assert (opened, gateway.open_attempts) == ([], 1)
            second.cancel()
        await third
        assert (opened, gateway.open_attempts) == (["third"], 0)


async def test_a_crowd_waits_its_turn_and_nothing_is_refused() -> None:
    """128 attempts before a sampler that answers when all of them wait."""
    sampler = ScriptedSampler(held=True)
    everyone = httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=None))
    with Gateway(sampler, RENDERER, max_open_attempts=128) as gateway:
        async with everyone as http:

            async def play(number: int) -> AttemptRecord:
                async with gateway.attempt(f"cid-{number}", draw=str(number), settings=SETTINGS) as attempt:
                    await Client(attempt, http).chat(USER)
                return attempt.record()

            playing = asyncio.gather(*map(play, range(128)))
            await until_async(lambda: len(sampler.calls) == 128)
            sampler.release()
            records = await playing
    assert len(sampler.calls) == 128
    assert all(record.faithfulness == Faithfulness(exact=1) for record in records)
    assert all(turn.delivered for record in records for turn in record.turns)


@pytest.mark.parametrize("given_up", [False, True], ids=["at once", "after a time-out"])
async def test_an_identical_call_joins_the_running_one_and_later_forks(given_up: bool) -> None:
    sampler = ScriptedSampler(held=True)
    async with attempt_client(sampler) as client:
        if given_up:
            await give_up(client)
        both = [asyncio.create_task(client.chat(USER)) for _ in range(2)]
        await until_async(lambda: client.attempt.record().faithfulness.repeated == 1 + given_up)
        sampler.release()
        first, second = await asyncio.gather(*both)
        assert first == second
        await client.chat(USER)  # answered in full, so this is a new sample
    record = client.attempt.record()
    assert len(sampler.calls) == 2
    assert record.faithfulness == Faithfulness(exact=1, forked=1, repeated=1 + given_up)
    assert all(turn.delivered for turn in record.turns)


async def give_up(client: Client) -> None:
    """Make a call, and close the connection when no answer has come for a while."""
    with pytest.raises(httpx.ReadTimeout):
        await client.post({"messages": [USER]}, timeout=httpx.Timeout(60, read=0.4))


@pytest.mark.parametrize("repeated", [False, True])
async def test_an_answer_that_was_not_delivered_is_given_again_and_else_not_trained_on(repeated: bool) -> None:
    sampler = ScriptedSampler(held=True)
    async with attempt_client(sampler) as client:
        await give_up(client)
        (generation,) = client.attempt._running.values()
        await until_async(lambda: not generation.waiting, what="the hang-up is noticed")
        sampler.release()
        await until_async(lambda: client.attempt.record().turns)
        assert client.attempt.record().turns[0].exclusion == "not_delivered"
        if repeated:
            await client.chat(USER)
    record = client.attempt.record()
    assert [turn.exclusion for turn in record.turns] == [None if repeated else "not_delivered"]
    assert record.faithfulness == Faithfulness(exact=1, repeated=int(repeated))
    assert len(sampler.calls) == 1


async def test_an_answer_that_arrived_and_was_not_read_is_given_again() -> None:
    """A client that gives up while the answer arrives: it closes with the bytes unread."""
    sampler = ScriptedSampler()
    async with attempt_client(sampler) as client:
        (await sent_and_not_read(client)).close()
        await until_async(lambda: client.attempt.record().turns[0].exclusion == "not_delivered")
        await client.chat(USER)
    record = client.attempt.record()
    assert len(sampler.calls) == 1
    assert record.faithfulness == Faithfulness(exact=1, repeated=1)
    assert record.turns[0].delivered


async def test_an_answer_was_read_if_the_connection_is_used_again() -> None:
    """Whatever becomes of the connection then."""
    sampler = ScriptedSampler()
    async with attempt_client(sampler) as client:
        connection = await sent_and_not_read(client)
        await asyncio.to_thread(connection.recv, 65_536)
        sampler.held = True
        await send(client, {"messages": [MORE]}, connection)
        await until_async(lambda: client.attempt._running)
        (generation,) = client.attempt._running.values()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()  # with a reset
        await until_async(lambda: not generation.waiting, what="the hang-up is noticed")
    assert [turn.delivered for turn in client.attempt.record().turns] == [True]


async def send(client: Client, body: dict[str, Any], connection: socket.socket) -> None:
    text = json.dumps(body)
    path = urlsplit(client.attempt.url).path
    head = f"POST {path}/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-length: {len(text)}\r\n\r\n"
    await asyncio.to_thread(connection.sendall, f"{head}{text}".encode())


async def connect(client: Client, connection: socket.socket) -> None:
    parts = urlsplit(client.attempt.url)
    await asyncio.to_thread(connection.connect, (parts.hostname, parts.port))


async def sent_and_not_read(client: Client) -> socket.socket:
    """Send a call; return its connection when the answer is delivered there, unread."""
    connection = socket.socket()
    await connect(client, connection)
    await send(client, {"messages": [USER]}, connection)
    await asyncio.to_thread(select.select, [connection], [], [], 60)
    await until_async(lambda: client.attempt.record().turns and client.attempt.record().turns[0].delivered)
    return connection


async def test_an_answer_that_was_sent_in_part_is_given_again() -> None:
    sampler = ScriptedSampler(lambda call: "x" * 60_000)
    settings = dataclasses.replace(SETTINGS, max_tokens=100_000, context_tokens=200_000)
    body = {"messages": [USER], "logprobs": True}
    async with attempt_client(sampler, settings) as client:
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await connect(client, connection)
            await send(client, body, connection)
            assert await asyncio.to_thread(connection.recv, 1)  # the rest stays unread, so that closing resets it
        await until_async(lambda: [turn.exclusion for turn in client.attempt.record().turns] == ["not_delivered"])
        assert (await client.post(body)).status_code == 200
    record = client.attempt.record()
    assert len(sampler.calls) == 1
    assert record.faithfulness == Faithfulness(exact=1, repeated=1)
    assert record.turns[0].delivered


@pytest.mark.ci
async def test_a_hang_up_frees_the_slot() -> None:
    sampler = ScriptedSampler(held=True)
    async with attempt_client(sampler) as client:
        await give_up(client)
        await until_async(lambda: sampler.cancelled == 1)
        sampler.release()
        await client.chat(USER)
    record = client.attempt.record()
    assert len(record.turns) == 1
    assert sampler.calls[0].draw == sampler.calls[1].draw  # as if the first had never been


async def test_the_end_of_an_attempt_ends_its_generations() -> None:
    sampler = ScriptedSampler(held=True)
    with Gateway(sampler, RENDERER, max_open_attempts=1) as gateway:
        async with httpx.AsyncClient(timeout=60) as http:
            async with gateway.attempt("cid", draw="d", settings=SETTINGS) as attempt:
                waiting = asyncio.create_task(Client(attempt, http).post({"messages": [USER]}))
                await until_async(lambda: sampler.calls)
            response = await waiting
    assert (response.status_code, code_of(response)) == (410, "attempt_ended")
    assert attempt.record().turns == ()
    assert sampler.cancelled == 1


class Hurried(Pace):
    """Allows each generation a tenth of a second."""

    def started(self, generation: object, max_tokens: int) -> float:
        super().started(generation, max_tokens)
        return 0.1


def fail(_: object) -> str:
    raise RuntimeError("sentinel-of-the-sampler")


@pytest.mark.parametrize(
    ("sampler", "status", "code"),
    [
        (ScriptedSampler(uneven=True), 500, "token_mismatch"),
        (ScriptedSampler(fail), 500, "internal_error"),
        (ScriptedSampler(held=True), 504, "generation_timeout"),
    ],
    ids=["uneven log-probabilities", "raises", "hangs"],
)
async def test_a_sampler_that_fails_is_an_error_that_shows_nothing_of_it(
    sampler: ScriptedSampler, status: int, code: str
) -> None:
    async with attempt_client(sampler, pace=Hurried() if sampler.held else None) as client:
        response = await client.post({"messages": [USER]})
        assert (response.status_code, code_of(response)) == (status, code)
        assert "sentinel" not in response.text
    record = client.attempt.record()
    assert (record.turns, record.faithfulness) == ((), Faithfulness(refused=1))
    assert sampler.cancelled == sampler.held


async def test_the_address_can_be_another_one_for_task_apps() -> None:
    with Gateway(ScriptedSampler(), RENDERER, max_open_attempts=1, public_url="https://trainer.example/g/") as gateway:
        async with gateway.attempt("cid", draw="d", settings=SETTINGS) as attempt:
            assert attempt.url == f"https://trainer.example/g/r/{attempt.token}/v1"
