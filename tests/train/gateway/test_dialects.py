"""`responses` and `messages` at the gateway: the same generations as those of chat completions, under other names."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from taskapp_kit.net.sse import SseReader
from taskapp_kit.train.gateway.attempt import Faithfulness
from tests.train.gateway import peers
from tests.train.gateway.peers import RENDERER, ScriptedSampler, attempt_client

pytestmark = [pytest.mark.server, pytest.mark.anyio]

SETTINGS = dataclasses.replace(peers.SETTINGS, max_tokens=100)

CALL = '<tool_call>\n{"name": "look", "arguments": {"far": true}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"far": {"type": "boolean"}}}
TOOL = {"type": "function", "name": "look", "description": "Look.", "parameters": SCHEMA, "strict": False}
MESSAGES_TOOL = {"name": "look", "description": "Look.", "input_schema": SCHEMA}
CHAT_TOOL = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": SCHEMA}}
USER = {"messages": [{"role": "user", "content": "Hi"}]}
CHAT_CALL = {"id": "c", "function": {"name": "look", "arguments": "{}"}}
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "Hm.", "tool_calls": [CHAT_CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "A wall."},
    {"role": "user", "content": [{"type": "text", "text": "And"}, {"type": "text", "text": "now?"}]},
]
INPUT = [
    {"role": "user", "content": "Hello."},
    {"type": "reasoning", "id": "rs_1", "summary": []},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hm.", "annotations": []}]},
    {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "A wall."},
    {"role": "user", "content": [{"type": "input_text", "text": "And"}, {"type": "input_text", "text": "now?"}]},
]
SAID = [
    {"type": "thinking", "thinking": "?", "signature": ""},
    {"type": "text", "text": "Hm."},
    {"type": "tool_use", "id": "c", "name": "look", "input": {}},
]
ASKED = [
    {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "A wall."}]},
    {"type": "text", "text": "And"},
    {"type": "text", "text": "now?"},
]
MESSAGES = [
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": SAID},
    {"role": "user", "content": ASKED},
]
RESPONSES_BODY = {"instructions": "Be brief.", "input": INPUT, "tools": [TOOL]}
MESSAGES_BODY = {
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": MESSAGES,
    "tools": [MESSAGES_TOOL],
    "max_tokens": 50,
}


@pytest.mark.parametrize(("route", "body"), [("responses", RESPONSES_BODY), ("messages", MESSAGES_BODY)])
async def test_the_prompt_is_that_of_the_same_conversation_as_chat(route: str, body: dict[str, Any]) -> None:
    sampler = ScriptedSampler()
    async with attempt_client(sampler, SETTINGS) as client:
        response = await client.post(body, route)
        assert response.status_code == 200, response.text
    assert sampler.calls[0].prompt_ids == RENDERER.prompt(CHAT, [CHAT_TOOL])


async def test_responses_continue_with_the_sampled_tokens() -> None:
    """A text and a call are two items of output, and one message of the conversation."""
    answers = [f"Wait. {CALL}", "A wall. "]
    sampler = ScriptedSampler(lambda call: answers[len(sampler.calls) - 1])
    async with attempt_client(sampler, SETTINGS) as client:
        given: list[Any] = [{"role": "user", "content": "Hello."}]
        body = {"model": "any", "instructions": "Look.", "tools": [TOOL], "temperature": 0.1}
        first = (await client.post({**body, "input": given}, "responses")).json()
        assert (first["object"], first["status"], first["model"]) == ("response", "completed", "policy")
        assert (first["instructions"], first["metadata"]) == ("Look.", {"weight_version": "3"})
        text, call = first["output"]
        assert (text["type"], text["content"][0]["text"]) == ("message", "Wait.")
        assert (call["type"], call["name"], json.loads(call["arguments"])) == ("function_call", "look", {"far": True})
        assert first["usage"]["output_tokens"] == len(answers[0]) + 1
        given += [*first["output"], {"type": "function_call_output", "call_id": call["call_id"], "output": "Brick."}]
        second = (await client.post({**body, "input": given}, "responses")).json()
        assert second["output"][0]["content"][0]["text"] == "A wall. "
    record = client.attempt.record()
    assert record.faithfulness == Faithfulness(exact=2)
    assert record.overridden == {"temperature": 2}
    assert [turn.parent for turn in record.turns] == [None, 0]
    first, second = record.turns
    assert second.prompt_ids[: len(first.ids)] == first.ids


async def test_messages_continue_with_the_sampled_tokens() -> None:
    answers = [f"Wait. {CALL}", "A wall. "]
    sampler = ScriptedSampler(lambda call: answers[len(sampler.calls) - 1])
    async with attempt_client(sampler, SETTINGS) as client:
        given: list[Any] = [{"role": "user", "content": "Hello."}]
        body = {"model": "any", "max_tokens": 90, "system": "Look.", "tools": [MESSAGES_TOOL]}
        first = (await client.post({**body, "messages": given}, "messages?beta=true")).json()
        assert (first["type"], first["role"], first["stop_reason"]) == ("message", "assistant", "tool_use")
        text, call = first["content"]
        assert text == {"type": "text", "text": "Wait."}
        assert (call["type"], call["name"], call["input"]) == ("tool_use", "look", {"far": True})
        assert first["usage"]["output_tokens"] == len(answers[0]) + 1
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "Brick."}
        given += [{"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
        second = (await client.post({**body, "messages": given}, "messages")).json()
        assert (second["content"], second["stop_reason"]) == ([{"type": "text", "text": "A wall. "}], "end_turn")
    record = client.attempt.record()
    assert record.faithfulness == Faithfulness(exact=2)
    first, second = record.turns
    assert second.prompt_ids[: len(first.ids)] == first.ids


async def test_an_answer_that_was_cut_says_so_and_has_its_tokens() -> None:
    async with attempt_client(ScriptedSampler(lambda call: "Hello"), SETTINGS) as client:
        more = {"return_token_ids": True}
        response = (await client.post({"input": "Hi", "max_output_tokens": 2, **more}, "responses")).json()
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert response["token_ids"] == [*b"He"]
        body = {**USER, "max_tokens": 2, **more}
        message = (await client.post(body, "messages")).json()
        assert (message["stop_reason"], message["token_ids"]) == ("max_tokens", [*b"He"])
        assert message["prompt_token_ids"] == list(RENDERER.prompt(body["messages"]))
        included = {"input": "Hi", "include": ["message.output_text.logprobs"], "stream": False}
        response = (await client.post(included, "responses")).json()
        log_probs = response["output"][0]["content"][0]["logprobs"]
        assert [entry["logprob"] for entry in log_probs] == [-0.5, -0.501, -0.502, -0.503, -0.504, -0.505]


async def test_a_stop_text_ends_a_message() -> None:
    async with attempt_client(ScriptedSampler(lambda call: "Hello"), SETTINGS) as client:
        body = {**USER, "max_tokens": 20, "stop_sequences": ["lo"]}
        message = (await client.post(body, "messages")).json()
        assert message["content"] == [{"type": "text", "text": "Hel"}]
    assert client.attempt.record().turns[0].token_ids == (*b"Hello",)


async def test_streams_end_in_what_a_whole_answer_has() -> None:
    async with attempt_client(ScriptedSampler(lambda call: f"Wait. {CALL}"), SETTINGS) as client:
        response = await client.post({"input": "Hi", "tools": [TOOL], "stream": True}, "responses")
        events = streamed(response.content)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        kinds = [event["type"].removeprefix("response.") for event in events]
        of_text = ["content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
        of_call = ["function_call_arguments.delta", "function_call_arguments.done"]
        items = [["output_item.added", *inner, "output_item.done"] for inner in (of_text, of_call)]
        assert kinds == ["created", "in_progress", *items[0], *items[1], "completed"]
        whole = events[-1]["response"]
        assert [item["type"] for item in whole["output"]] == ["message", "function_call"]
        assert events[0]["response"]["output"] == []

        body = {**USER, "max_tokens": 90, "tools": [MESSAGES_TOOL], "stream": True}
        events = streamed((await client.post(body, "messages")).content)
        block = ["content_block_start", "content_block_delta", "content_block_stop"]
        assert [event["type"] for event in events] == ["message_start", *block, *block, "message_delta", "message_stop"]
        assert events[2]["delta"] == {"type": "text_delta", "text": "Wait."}
        assert json.loads(events[5]["delta"]["partial_json"]) == {"far": True}
        assert events[-2]["delta"]["stop_reason"] == "tool_use"
    record = client.attempt.record()
    assert all(turn.delivered for turn in record.turns)


def streamed(content: bytes) -> list[dict[str, Any]]:
    reader = SseReader()
    events = [(event.event, json.loads(event.data)) for event in reader.feed(content)]
    assert all(name == data["type"] for name, data in events)
    return [data for _, data in events]


@pytest.mark.parametrize(
    ("route", "body", "named"),
    [
        ("responses", {"input": "Hi", "previous_response_id": "resp_1"}, "previous_response_id"),
        ("responses", {"input": "Hi", "conversation": "conv_1"}, "conversation"),
        ("responses", {"input": "Hi", "background": True}, "background"),
        ("responses", {"prompt": {"id": "pmpt_1"}}, "prompt"),
        ("responses", {"input": "Hi", "truncation": "auto"}, "truncation"),
        ("responses", {"input": "Hi", "tools": [{"type": "web_search"}]}, "tools.0.type"),
        ("responses", {"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0.type"),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0.type"),
        ("responses", {"input": []}, "input"),
        ("responses", {"input": 3}, "input"),
        ("responses", {"input": "Hi", "top_logprobs": 3}, "top_logprobs"),
        ("messages", {**USER, "mcp_servers": [{"url": "http://x"}]}, "mcp_servers"),
        ("messages", {**USER, "container": "c"}, "container"),
        ("messages", {**USER, "tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0.content.0.type"),
        ("messages", {"messages": [*USER["messages"], {"role": "assistant", "content": "I"}]}, "messages.1"),
        ("messages", {"messages": [{"role": "tool", "content": "Hi"}]}, "messages.0.role"),
        ("messages", {}, "messages"),
    ],
)
async def test_what_needs_a_server_or_cannot_be_said_is_refused_by_its_name(
    route: str, body: dict[str, Any], named: str
) -> None:
    sampler = ScriptedSampler()
    async with attempt_client(sampler, SETTINGS) as client:
        response = await client.post(body, route)
        assert response.status_code == 422
        error = response.json()
        assert (error.get("type") == "error") is (route == "messages")
        assert ".".join(map(str, error["error"]["fields"][0]["loc"])) == f"body.{named}"
    assert client.attempt.record().faithfulness == Faithfulness(refused=1)
    assert sampler.calls == []
