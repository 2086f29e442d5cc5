"""A model's answer on the wire: a completion as one object, and as the events of a stream that add up to it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from taskapp_kit.wire.chat.dialects import Dialect

StreamEvent = tuple[str, bytes]
"""The name of a server-sent event, empty for none, and its data."""
DONE: StreamEvent = ("", b"[DONE]")
Members = dict[str, Any]


def completion(
    identity: str, choices: Sequence[Members], usage: Members, *, model: str, text: bool = False, **members: Any
) -> Members:
    """Return a chat completion. text: of `completions`, whose choices have texts. members: further ones of the answer."""
    return {
        "id": f"{'cmpl' if text else 'chatcmpl'}-{identity}",
        "object": "text_completion" if text else "chat.completion",
        "created": int(time.time()),
        "model": model,
        **members,
        "choices": list(choices),
        "usage": usage,
    }


def token_usage(prompt_tokens: int, completion_tokens: int) -> Members:
    """Return the numbers of tokens as `usage`."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def model_list(models: Iterable[tuple[str, float, str]]) -> Members:
    """Return the answer of `GET models`. models: name, time (seconds since 1970) and owner of each."""
    cards = [{"id": name, "object": "model", "created": int(at), "owned_by": owner} for name, at, owner in models]
    return {"object": "list", "data": cards}


def answer_events(answer: Mapping[str, Any], dialect: Dialect | None, *, usage_event: bool) -> list[StreamEvent]:
    """Return the stream of an answer, its text in one piece.

    Args:
        answer: As it is sent whole, in the API of `dialect`; None for chat completions and `completions`. Its choice may
            have `logprobs` and `token_ids`, which stand in the chunk with the text.
        dialect: The other API in which it is sent.
        usage_event: Whether the number of tokens comes at the end.
    """
    if dialect is not None:
        return [(event["type"], orjson.dumps(event)) for event in dialect.events(answer)]
    (choice,) = answer["choices"]
    sampled = {name: part for name, part in choice.items() if name not in ("index", "finish_reason", "message")}
    end = {"logprobs": None, "finish_reason": choice["finish_reason"]}
    if "message" not in choice:
        return chunks(answer, [sampled, {"text": "", **end}], usage_event=usage_event)
    delta = {name: value for name, value in choice["message"].items() if name != "role" and value is not None}
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": at, **item} for at, item in enumerate(delta["tool_calls"])]
    role = {"delta": {"role": "assistant", "content": ""}, "logprobs": None}
    return chunks(answer, [role, {**sampled, "delta": delta}, {"delta": {}, **end}], usage_event=usage_event)


def chunks(
    answer: Mapping[str, Any], choices: Sequence[Members], *, usage_event: bool, last: Mapping[str, Any] | None = None
) -> list[StreamEvent]:
    """Return a chunk with each of the choices, the usage if requested, and the end. last: members of a choice's last chunk."""
    once = {name: answer[name] for name in ("prompt_token_ids",) if name in answer}
    frame = {name: part for name, part in answer.items() if name not in ("choices", "usage", *once)}
    if answer["object"] == "chat.completion":
        frame["object"] = "chat.completion.chunk"
    if usage_event:
        frame["usage"] = None
    events = [
        {
            **frame,
            **(once if at == 0 else {}),
            **((last or {}) if choice.get("finish_reason") else {}),
            "choices": [{"index": 0, "finish_reason": None, **choice}],
        }
        for at, choice in enumerate(choices)
    ]
    if usage_event:
        events.append({**frame, "choices": [], "usage": answer["usage"]})
    return [*(("", orjson.dumps(event)) for event in events), DONE]
