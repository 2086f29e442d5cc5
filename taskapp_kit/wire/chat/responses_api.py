"""Translates OpenAI's Responses API to chat completions and back.

The translation is stateless: each call sends the whole conversation as `input`. Features that need state on the server
(earlier responses, conversations, stored prompts, background requests, tools that the server runs) are rejected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

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
    "previous_response_id": "Send the conversation as `input`.",
    "conversation": "Send the conversation as `input`.",
    "background": "Omit it, and wait for the response.",
    "prompt": "Send the text of the prompt as `instructions` or `input`.",
    "context_management": "Omit it, and shorten the conversation yourself.",
}
COPIED = tuple(
    """model temperature top_p top_logprobs stream parallel_tool_calls seed chat_template_kwargs return_token_ids""".split()
)
TEXTS = ("input_text", "output_text", "text")
SHOWN = tuple(
    """instructions max_output_tokens temperature top_p tools tool_choice text reasoning parallel_tool_calls user""".split()
)
"""The request's fields that the response repeats."""


def chat_request(body: Body) -> dict[str, Any]:
    """Return the equivalent chat completions request. Raises RequestError for unsupported parts."""
    refuse(body, REFUSED)
    if body.get("truncation") not in (None, "disabled"):
        raise wrong(("truncation",), "should be disabled", "Shorten the conversation yourself.")
    messages: list[dict[str, Any]] = []
    if body.get("instructions") is not None:
        messages.append({"role": "system", "content": text_of(body, "instructions", ())})
    request = {**copied(body, COPIED), "messages": [*messages, *_messages(body)]}
    if body.get("max_output_tokens") is not None:
        request["max_tokens"] = body["max_output_tokens"]
    include = body.get("include")
    if isinstance(include, list) and "message.output_text.logprobs" in include:
        request["logprobs"] = True
    tools = [_tool(tool, ("tools", index)) for index, tool in enumerate(entries(body, "tools"))]
    if tools:
        request["tools"] = tools
    choice, form = body.get("tool_choice"), _format(body)
    if isinstance(choice, dict):
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    return {**request, **copied({"tool_choice": choice, "response_format": form}, ("tool_choice", "response_format"))}


def _messages(body: Body) -> list[dict[str, Any]]:
    given = body.get("input")
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise wrong(("input",), "should be a string, or a list with at least one item")
    messages: list[dict[str, Any]] = []
    answer: tuple[list[str], list[Body]] | None = None  # text parts and tool calls of the assistant's current message
    for index, item in enumerate(entries(body, "input")):
        place: Place = ("input", index)
        kind = item.get("type", "message")
        role = item.get("role")
        if kind == "reasoning":
            continue  # not sampled again, as with chat completions
        if kind == "function_call":
            answer = answer or ([], [])
            name, arguments = text_of(item, "name", place), text_of(item, "arguments", place)
            answer[1].append(chat_call(text_of(item, "call_id", place), name, arguments))
            continue
        if answer is not None:
            messages.append(assistant_message(*answer))
            answer = None
        if kind == "message" and role == "assistant":
            answer = (_texts(item, "content", place), [])
        elif kind == "message":
            messages.append({"role": role, "content": chat_content(_texts(item, "content", place))})
        elif kind == "function_call_output":
            output = chat_content(_texts(item, "output", place))
            messages.append({"role": "tool", "tool_call_id": text_of(item, "call_id", place), "content": output})
        else:
            raise wrong((*place, "type"), unknown(kind), "Send messages, function calls and their outputs.")
    return [*messages, *([] if answer is None else [assistant_message(*answer)])]


def _texts(item: Body, name: str, place: Place) -> list[str]:
    if isinstance(item.get(name), str):
        return [item[name]]
    found = []
    for index, part in enumerate(entries(item, name, place)):
        inner = (*place, name, index)
        kind = part.get("type")
        if kind == "refusal":
            found.append(text_of(part, "refusal", inner))
        elif kind in TEXTS:
            found.append(text_of(part, "text", inner))
        else:
            raise wrong((*inner, "type"), unknown(kind), "Send text: this policy does not read images, files or audio.")
    return found or [""]


def _tool(tool: Body, place: Place) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise wrong((*place, "type"), unknown(tool.get("type")), "Send function tools, which the client runs.")
    return chat_tool(text_of(tool, "name", place), tool.get("parameters"), tool.get("description"))


def _format(body: Body) -> Any:
    """Convert `text.format` to the field `response_format` of chat completions. Return None for plain text."""
    text = body.get("text")
    form = text.get("format") if isinstance(text, dict) else None
    if not isinstance(form, dict) or form.get("type") in (None, "text"):
        return None
    if form["type"] != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {name: part for name, part in form.items() if name != "type"}}


# answers


def answer(completion: Body, request: Body) -> dict[str, Any]:
    """Convert a chat completion to the response to `request`."""
    choice = completion["choices"][0]
    message = choice["message"]
    cut = choice.get("finish_reason") == "length"
    identity = str(completion["id"]).rpartition("-")[2]
    prompt, sampled = token_counts(completion)
    return {
        "id": f"resp_{identity}",
        "object": "response",
        "created_at": completion["created"],
        "status": "incomplete" if cut else "completed",
        "background": False,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "model": completion["model"],
        "output": _output(choice, message, identity, "incomplete" if cut else "completed"),
        "previous_response_id": None,
        "store": False,
        "truncation": "disabled",
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + sampled,
        },
        "instructions": None,
        "max_output_tokens": None,
        "parallel_tool_calls": True,
        "reasoning": {"effort": None, "summary": None},
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "user": None,
        "metadata": {},
        **copied(request, SHOWN),
        **token_members(completion),
    }


def _output(choice: Body, message: Body, identity: str, status: str) -> list[dict[str, Any]]:
    output: list[dict[str, Any]] = []
    reasoning, content, calls = message.get("reasoning_content"), message.get("content"), calls_of(message)
    if reasoning:
        output.append(
            {
                "id": f"rs_{identity}",
                "type": "reasoning",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": reasoning}],
            }
        )
    if content or not calls:
        log_probs = (choice.get("logprobs") or {}).get("content") or []
        part = {"type": "output_text", "text": content or "", "annotations": [], "logprobs": log_probs}
        output.append(
            {"id": f"msg_{identity}", "type": "message", "role": "assistant", "status": status, "content": [part]}
        )
    for number, call in enumerate(calls):
        output.append(
            {
                "id": f"fc_{identity}_{number}",
                "type": "function_call",
                "call_id": call["id"],
                "name": call["function"]["name"],
                "arguments": call["function"]["arguments"],
                "status": status,
            }
        )
    return output


def events(whole: Body) -> Iterator[dict[str, Any]]:
    """Yield the stream events of a response. Each text has a single delta."""
    for number, event in enumerate(_events(whole)):
        yield {**event, "sequence_number": number}


def _events(whole: Body) -> Iterator[dict[str, Any]]:
    begun = {**whole, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(whole["output"]):
        at = {"output_index": index}
        of_item = {**at, "item_id": item["id"]}
        empty: dict[str, Any] = {"arguments": ""} if item["type"] == "function_call" else {"content": []}
        yield {"type": "response.output_item.added", **at, "item": {**item, "status": "in_progress", **empty}}
        if item["type"] == "function_call":
            arguments = item["arguments"]
            yield {"type": "response.function_call_arguments.delta", **of_item, "delta": arguments}
            yield {
                "type": "response.function_call_arguments.done",
                **of_item,
                "name": item["name"],
                "arguments": arguments,
            }
        elif item["type"] == "message":
            (part,) = item["content"]
            of_part, sampled = {**of_item, "content_index": 0}, {"logprobs": part["logprobs"]}
            yield {"type": "response.content_part.added", **of_part, "part": {**part, "text": "", "logprobs": []}}
            yield {"type": "response.output_text.delta", **of_part, "delta": part["text"], **sampled}
            yield {"type": "response.output_text.done", **of_part, "text": part["text"], **sampled}
            yield {"type": "response.content_part.done", **of_part, "part": part}
        yield {"type": "response.output_item.done", **at, "item": item}
    yield {"type": f"response.{whole['status']}", "response": whole}
