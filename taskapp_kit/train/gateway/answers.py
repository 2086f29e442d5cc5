"""Converts a finished generation into a response of the client's API, complete or as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any

from taskapp_kit.net.response import EncodedResponse, json_answer
from taskapp_kit.net.sse import EventStreamResponse, event_frames
from taskapp_kit.train.gateway.attempt import AnsweredTurn
from taskapp_kit.train.gateway.call_reader import GatewayCall
from taskapp_kit.train.rendering.renderer import TextTokenizer
from taskapp_kit.wire.chat.completion import StreamEvent, answer_events, completion, token_usage

MODEL = "policy"
"""The model's name in the gateway's responses. It does not depend on the name in the request."""


def answer(
    call: GatewayCall, turn: AnsweredTurn, tokenizer: TextTokenizer, model: str = MODEL
) -> EncodedResponse | EventStreamResponse:
    """Return the response to a model call. A stream sends the whole text in one event. `model` is the name in the response."""
    whole = _whole(call, turn, tokenizer, model)
    if call.dialect is not None:
        whole = call.dialect.answer(whole, call.body)
    if not call.stream:
        return json_answer(whole)
    return EventStreamResponse(_in_one_batch(answer_events(whole, call.dialect, usage_event=call.usage_event)))


def _whole(call: GatewayCall, turn: AnsweredTurn, tokenizer: TextTokenizer, model: str) -> dict[str, Any]:
    logprobs = _logprobs(call, turn, tokenizer)
    choice: dict[str, Any] = {"index": 0, "finish_reason": turn.finish_reason, "logprobs": logprobs}
    if isinstance(turn.returned, dict):
        choice["message"] = {"refusal": None, **turn.returned}
    else:
        choice["text"] = turn.returned
    members: dict[str, Any] = {"metadata": {"weight_version": str(turn.sampled.version)}}
    if call.token_ids:
        choice["token_ids"] = turn.sampled.token_ids
        members["prompt_token_ids"] = turn.prompt_ids
    usage = token_usage(len(turn.prompt_ids), len(turn.sampled.token_ids))
    return completion(turn.identity, [choice], usage, model=model, text="text" in choice, **members)


async def _in_one_batch(events: Sequence[StreamEvent]) -> AsyncGenerator[Iterable[bytes], None]:
    yield event_frames(events)


def _logprobs(call: GatewayCall, turn: AnsweredTurn, tokenizer: TextTokenizer) -> dict[str, Any] | None:
    if not call.logprobs:
        return None
    tokens = [tokenizer.decode([token_id]) for token_id in turn.sampled.token_ids]
    if isinstance(turn.returned, dict):
        entries = [
            {"token": token, "logprob": log_prob, "bytes": _bytes(token), "top_logprobs": []}
            for token, log_prob in zip(tokens, turn.sampled.log_probs, strict=True)
        ]
        return {"content": entries, "refusal": None}
    offsets = [0]
    for token in tokens[:-1]:
        offsets.append(offsets[-1] + len(token))
    return {
        "tokens": tokens,
        "token_logprobs": turn.sampled.log_probs,
        "top_logprobs": None,
        "text_offset": offsets[: len(tokens)],
    }


def _bytes(token: str) -> list[int] | None:
    """Return the token's bytes, or None if they are an incomplete character and therefore unknown."""
    return None if "\N{REPLACEMENT CHARACTER}" in token else list(token.encode())
