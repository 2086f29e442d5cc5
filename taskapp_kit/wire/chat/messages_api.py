"""Translates Anthropic's Messages API to chat completions and back. Tools that a server would run are rejected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from taskapp_kit.wire.chat.dialect_body import (
    Body,
    Place,
    assistant_message,
    calls_of,
    chat_call,
    chat_content,
    chat_tool,
    copied,
    entries,
    refuse,
    text_of,
    token_counts,
    token_members,
    unknown,
    wrong,
)

REFUSED: Mapping[str, str] = {
    "mcp_servers": "Call the tools of MCP servers from the client.",
    "container": "Omit it.",
    "context_management": "Omit it, and shorten the conversation yourself.",
}
COPIED = ("model", "max_tokens", "temperature", "top_p", "top_k", "stream", "chat_template_kwargs", "return_token_ids")
CHOICES: Mapping[str, str] = {"auto": "auto", "any": "required", "none": "none"}
STOP_REASONS: Mapping[str, str] = {"length": "max_tokens", "tool_calls": "tool_use"}
THOUGHTS = ("thinking", "redacted_thinking")
UNREADABLE = "unreadable"
"""The field in a call's `input` that contains the arguments if they are not a JSON object."""


def chat_request(body: Body) -> dict[str, Any]:
    """Return the equivalent chat completions request. Raises RequestError for unsupported parts."""
    refuse(body, REFUSED)
    request = {**copied(body, COPIED), "messages": [*_system(body), *_messages(body)]}
    if body.get("stop_sequences"):
        request["stop"] = body["stop_sequences"]
    tools = [_tool(tool, ("tools", index)) for index, tool in enumerate(entries(body, "tools"))]
    if tools:
        request["tools"] = tools
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        kind = choice.get("type")
        request["tool_choice"] = (
            {"type": "function", "function": {"name": choice.get("name")}} if kind == "tool" else CHOICES.get(str(kind))
        )
        if choice.get("disable_parallel_tool_use"):
            request["parallel_tool_calls"] = False
    output = body.get("output_config")
    form = output.get("format") if isinstance(output, dict) else body.get("output_format")
    if isinstance(form, dict) and form.get("type") == "json_schema":
        request["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": form.get("schema")},
        }
    return request


def _system(body: Body) -> list[dict[str, Any]]:
    if not body.get("system"):
        return []
    return [{"role": "system", "content": chat_content(_texts(body, "system", ()))}]


def _messages(body: Body) -> list[dict[str, Any]]:
    given = entries(body, "messages")
    if not given:
        raise wrong(("messages",), "should be a list with at least one message")
    if given[-1].get("role") == "assistant":
        raise wrong(
            ("messages", len(given) - 1),
            "has the role assistant, but this server cannot continue a reply",
            "End `messages` with a user message.",
        )
    found: list[dict[str, Any]] = []
    for index, message in enumerate(given):
        place: Place = ("messages", index)
        role = message.get("role")
        if role == "assistant":
            found.append(_assistant(message, place))
        elif role == "user":
            found += _user(message, place)
        elif role == "system":
            found.append({"role": "system", "content": chat_content(_texts(message, "content", place))})
        else:
            raise wrong((*place, "role"), "should be user or assistant")
    return found


def _assistant(message: Body, place: Place) -> dict[str, Any]:
    if isinstance(message.get("content"), str):
        return assistant_message([message["content"]], ())
    texts: list[str] = []
    calls: list[Body] = []
    for index, block in enumerate(entries(message, "content", place)):
        inner = (*place, "content", index)
        kind = block.get("type")
        if kind == "text":
            texts.append(text_of(block, "text", inner))
        elif kind == "tool_use":
            given = block.get("input")
            unreadable = given.get(UNREADABLE) if isinstance(given, dict) and len(given) == 1 else None
            arguments = unreadable if isinstance(unreadable, str) else orjson.dumps(given or {}).decode()
            calls.append(chat_call(text_of(block, "id", inner), text_of(block, "name", inner), arguments))
        elif kind not in THOUGHTS:
            raise wrong((*inner, "type"), unknown(kind), "Send blocks of type text or tool_use.")
    return assistant_message(texts, calls)


def _user(message: Body, place: Place) -> Iterator[dict[str, Any]]:
    """Yield the tool results as chat messages, then the user's text."""
    if isinstance(message.get("content"), str):
        yield {"role": "user", "content": message["content"]}
        return
    texts: list[str] = []
    results = 0
    for index, block in enumerate(entries(message, "content", place)):
        inner = (*place, "content", index)
        kind = block.get("type")
        if kind == "tool_result":
            results += 1
            content = chat_content(_texts(block, "content", inner)) if block.get("content") else ""
            yield {"role": "tool", "tool_call_id": text_of(block, "tool_use_id", inner), "content": content}
        elif kind == "text":
            texts.append(text_of(block, "text", inner))
        else:
            raise wrong((*inner, "type"), unknown(kind), "Send blocks of type text or tool_result.")
    if texts or not results:
        yield {"role": "user", "content": chat_content(texts or [""])}


def _texts(body: Body, name: str, place: Place) -> list[str]:
    if isinstance(body.get(name), str):
        return [body[name]]
    found = []
    for index, block in enumerate(entries(body, name, place)):
        inner = (*place, name, index)
        if block.get("type") != "text":
            raise wrong(
                (*inner, "type"), unknown(block.get("type")), "Send text: this policy does not read images or files."
            )
        found.append(text_of(block, "text", inner))
    return found or [""]


def _tool(tool: Body, place: Place) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        raise wrong(
            (*place, "type"), unknown(tool.get("type")), "Send tools that the client runs, with an `input_schema`."
        )
    return chat_tool(text_of(tool, "name", place), tool.get("input_schema"), tool.get("description"))


# answers


def answer(completion: Body, _: Body) -> dict[str, Any]:
    """Convert a chat completion to a response of the Messages API."""
    choice = completion["choices"][0]
    message = choice["message"]
    prompt, sampled = token_counts(completion)
    content: list[dict[str, Any]] = []
    if message.get("reasoning_content"):
        content.append({"type": "thinking", "thinking": message["reasoning_content"], "signature": ""})
    calls = calls_of(message)
    if message.get("content") or not calls:
        content.append({"type": "text", "text": message.get("content") or ""})
    content += [
        {"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": _input(call)}
        for call in calls
    ]
    return {
        "id": f"msg_{str(completion['id']).rpartition('-')[2]}",
        "type": "message",
        "role": "assistant",
        "model": completion["model"],
        "content": content,
        "stop_reason": STOP_REASONS.get(str(choice.get("finish_reason")), "end_turn"),
        "stop_sequence": None,
        "usage": {
            "input_tokens": prompt,
            "output_tokens": sampled,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        },
        **token_members(completion),
    }


def _input(call: Body) -> dict[str, Any]:
    arguments = call["function"]["arguments"]
    try:
        found = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        found = None
    return found if isinstance(found, dict) else {UNREADABLE: arguments}


def events(whole: Body) -> Iterator[dict[str, Any]]:
    """Yield the stream events of a message. Each content block has a single delta."""
    usage = whole["usage"]
    begun = {**whole, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 0}}
    yield {"type": "message_start", "message": begun}
    for index, block in enumerate(whole["content"]):
        kind = block["type"]
        if kind == "text":
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        elif kind == "thinking":
            empty, delta = {**block, "thinking": ""}, {"type": "thinking_delta", "thinking": block["thinking"]}
        else:
            arguments = orjson.dumps(block["input"]).decode()
            empty, delta = {**block, "input": {}}, {"type": "input_json_delta", "partial_json": arguments}
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ended = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ended, "usage": usage}
    yield {"type": "message_stop"}


def error_body(status: int, error: dict[str, Any]) -> dict[str, Any]:
    """Return an error in the format of this API, as the `shape` of an ErrorWriter."""
    kind = {404: "not_found_error", 413: "request_too_large"}.get(status, "invalid_request_error")
    return {"type": "error", "error": {"type": kind if status < 500 else "api_error", **error}}
