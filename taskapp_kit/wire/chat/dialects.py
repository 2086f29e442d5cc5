"""The APIs in which a generation may be requested besides chat completions, by their route below `/v1/`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from taskapp_kit.wire.chat import messages_api, responses_api


@dataclass(frozen=True, slots=True)
class Dialect:
    """Another API for the same generation: its requests and its answers in terms of chat completions.

    chat_request: the request of chat completions that asks for the same; raises RequestError for what is not supported.
    answer: a chat completion as this API sends it, and the request that it answers. events: such an answer as the events
    of a stream.
    """

    chat_request: Callable[[Mapping[str, Any]], dict[str, Any]]
    answer: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]
    events: Callable[[Mapping[str, Any]], Iterable[dict[str, Any]]]


DIALECTS: Mapping[str, Dialect] = {
    "responses": Dialect(responses_api.chat_request, responses_api.answer, responses_api.events),
    "messages": Dialect(messages_api.chat_request, messages_api.answer, messages_api.events),
}
