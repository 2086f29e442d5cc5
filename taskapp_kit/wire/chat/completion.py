"""Chat completions on the wire: requests, responses as an object or a stream, and translations to other APIs."""

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
    """The field `stream_options` of a request."""

    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None


class CompletionRequest(BaseModel):
    """The fields that `completions` and chat completions share. Other fields of a request are ignored."""

    model_config = ConfigDict(strict=True)

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def usage_event(self) -> bool:
        """Return whether the client requested token counts at the end of the stream."""
        return bool(self.stream and self.stream_options and self.stream_options.include_usage)


class ChatCompletionRequest(CompletionRequest):
    """A chat completions request. The messages are not checked here, but by the code that reads them."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]


def read_request(model: type[Request], body: Any) -> Request:
    """Validate a request body. Raises RequestError, which names the invalid fields."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        fields = body_problems(error, body)
        place = ".".join(map(str, fields[0].loc[1:]))
        raise RequestError(f"{place} {fields[0].message}.", fields=fields) from None


@dataclass(frozen=True, slots=True)
class Dialect:
    """An API that is translated to and from chat completions.

    Attributes:
        chat_request: Translates a request to a chat completions request. Raises RequestError for unsupported parts.
        answer: Translates a chat completion to a response of this API, given the request.
        events: Converts a response of this API to stream events.
    """

    chat_request: Callable[[Mapping[str, Any]], dict[str, Any]]
    answer: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]
    events: Callable[[Mapping[str, Any]], Iterable[dict[str, Any]]]


# Requests are translated to chat completions first, so that the code that finds earlier turns, enforces limits and
# counts calls handles only one format. Fields that need state or tools on the server are rejected, because ignoring
# them would train on a conversation that the agent did not have.
DIALECTS: Mapping[str, Dialect] = {
    "responses": Dialect(responses_api.chat_request, responses_api.answer, responses_api.events),
    "messages": Dialect(messages_api.chat_request, messages_api.answer, messages_api.events),
}


StreamEvent = tuple[str, bytes]
"""The name of a server-sent event, or "", and its data."""
DONE: StreamEvent = ("", b"[DONE]")
Members = dict[str, Any]


def completion(
    identity: str, choices: Sequence[Members], usage: Members, *, model: str, text: bool = False, **members: Any
) -> Members:
    """Return a chat completion, or a text completion if `text` is true. members: additional top-level fields."""
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
    """Return the field `usage`."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def model_list(models: Iterable[tuple[str, float, str]]) -> Members:
    """Return the response of `GET models`. models: the name, creation time (Unix seconds) and owner of each model."""
    cards = [{"id": name, "object": "model", "created": int(at), "owned_by": owner} for name, at, owner in models]
    return {"object": "list", "data": cards}


def answer_events(answer: Mapping[str, Any], dialect: Dialect | None, *, usage_event: bool) -> list[StreamEvent]:
    """Convert a complete response to stream events. The whole text is in one event.

    Args:
        answer: The response in the format of `dialect`. If its choice has `logprobs` or `token_ids`, the chunk with the
            text contains them.
        dialect: The API of the response, or None for chat completions and `completions`.
        usage_event: Whether the stream ends with the token counts.
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
        # clients join the parts of a tool call by its index
        delta["tool_calls"] = [{"index": at, **item} for at, item in enumerate(delta["tool_calls"])]
    role = {"delta": {"role": "assistant", "content": ""}, "logprobs": None}
    return chunks(answer, [role, {**sampled, "delta": delta}, {"delta": {}, **end}], usage_event=usage_event)


def chunks(
    answer: Mapping[str, Any], choices: Sequence[Members], *, usage_event: bool, last: Mapping[str, Any] | None = None
) -> list[StreamEvent]:
    """Return one chunk for each choice, then the usage if requested, then DONE.

    last: additional fields of the chunks that have a finish reason.
    """
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
