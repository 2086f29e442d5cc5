"""Completions on the wire: the request, the answer as an object and as a stream, and other APIs for both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from taskapp_kit.errors import RequestError
from taskapp_kit.wire.chat import messages_api, responses_api
from taskapp_kit.wire.field_problems import body_problems

Request = TypeVar("Request", bound=BaseModel)


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None


class CompletionRequest(BaseModel):
    """A request of `completions` or of chat completions. Other members are ignored."""

    model_config = ConfigDict(strict=True)

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def usage_event(self) -> bool:
        """Return whether a stream ends with the number of tokens."""
        return bool(self.stream and self.stream_options and self.stream_options.include_usage)


class ChatCompletionRequest(CompletionRequest):
    """A request of chat completions. Code that reads a message checks its contents."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]


def read_request(model: type[Request], body: Any) -> Request:
    """Return a body as its model. Raises RequestError, which names the invalid members."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        fields = body_problems(error, body)
        place = ".".join(map(str, fields[0].loc[1:]))
        raise RequestError(f"{place} {fields[0].message}.", fields=fields) from None


@dataclass(frozen=True, slots=True)
class Dialect:
    """Another API for chat completions: the translation of its requests and answers.

    chat_request: translates a request; raises RequestError for unsupported parts. answer: translates a chat completion,
    given its request. events: converts an answer to the events of a stream.
    """

    chat_request: Callable[[Mapping[str, Any]], dict[str, Any]]
    answer: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]
    events: Callable[[Mapping[str, Any]], Iterable[dict[str, Any]]]


# Requests are translated to chat completions first, so that recognition of earlier turns, repeats, limits and counts know
# one form. Members that need a state or a tool on the server are rejected by name, because ignoring them would train on a
# conversation that the agent did not have.
DIALECTS: Mapping[str, Dialect] = {
    "responses": Dialect(responses_api.chat_request, responses_api.answer, responses_api.events),
    "messages": Dialect(messages_api.chat_request, messages_api.answer, messages_api.events),
}


StreamEvent = tuple[str, bytes]
"""The name of a server-sent event, empty for none, and its data."""
DONE: StreamEvent = ("", b"[DONE]")
Members = dict[str, Any]


def completion(
    identity: str, choices: Sequence[Members], usage: Members, *, model: str, text: bool = False, **members: Any
) -> Members:
    """Return a chat completion. text: for `completions`, whose choices have text. members: additional members."""
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
    """Return `usage` with the numbers of tokens."""
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
            have `logprobs` and `token_ids`, which are in the chunk with the text.
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
        # clients join the pieces of a call by its index
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
