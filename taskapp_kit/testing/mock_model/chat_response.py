"""Encodes a reply as a chat completion: a JSON object, or an equivalent stream of events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taskapp_kit.records.content import Json
from taskapp_kit.testing.mock_model import tokenizer
from taskapp_kit.testing.mock_model.chat_request import ChatRequest
from taskapp_kit.testing.mock_model.reply import Reply
from taskapp_kit.wire.chat.completion import StreamEvent, chunks, completion, token_usage
from taskapp_kit.wire.chat.dialect_body import chat_call

LETTERS_AT_ONCE = 12
"""The number of characters in an event of a stream."""

Fragment = tuple[dict[str, Json], list[int]]
"""A `delta` in a stream, and the ids of its tokens."""


@dataclass(slots=True)
class WrittenChoice:
    """One choice: the reply within the token limit, its token ids and their log-probabilities.

    `ids` is None if the request requires neither ids nor log-probabilities. If `uneven` is set, the last
    log-probability is missing.
    """

    reply: Reply
    length: int
    ids: list[int] | None = None
    logprobs: list[float] | None = None
    uneven: bool = False


def write(request: ChatRequest, reply: Reply, *, uneven: bool = False) -> WrittenChoice:
    """Return the reply, truncated to the token limit, with the ids and log-probabilities that the request requires."""
    body = request.body
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    if limit is not None:
        reply = tokenizer.cut(reply, limit)
    pieces = tokenizer.answer(reply, ended=reply.finish != "length")
    written = WrittenChoice(reply, tokenizer.count(pieces))
    if body.get("return_token_ids") or body.get("logprobs"):
        written.ids = tokenizer.ids(pieces)
    if body.get("logprobs") and written.ids is not None:
        rng = request.rng("logprobs")
        written.logprobs = [round(-rng.expovariate(2.0), 6) for _ in written.ids]
        written.uneven = uneven
    return written


def usage_of(prompt_tokens: int, choices: Sequence[WrittenChoice]) -> dict[str, Json]:
    """Return `usage`: the number of tokens in the prompt and in the replies, and the number of reasoning tokens."""
    thought = sum(len(choice.reply.reasoning.encode()) for choice in choices if choice.reply.reasoning)
    return {
        **token_usage(prompt_tokens, sum(choice.length for choice in choices)),
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": thought},
    }


def identity(request: ChatRequest) -> str:
    """Return a part of the completion's id. It differs each time the same conversation is sent."""
    return f"{request.digest[:20]}{request.attempt:04x}"


def call_ids(request: ChatRequest, written: WrittenChoice, choice: int) -> list[str]:
    """Return an id for each tool call, which depends only on the conversation and the position of the call."""
    return [f"call_{request.digest[:16]}{choice:02x}{index:02x}" for index in range(len(written.reply.calls))]


def plain(
    request: ChatRequest, prompt: tokenizer.Prompt, choices: Sequence[WrittenChoice], model: str, version: str | None
) -> dict[str, Any]:
    """Return the response as a single JSON object."""
    answer = _without_choices(request, prompt, choices, model)
    answer["choices"] = [_choice(request, index, written) for index, written in enumerate(choices)]
    return {**answer, **_metadata(version)}


def _without_choices(
    request: ChatRequest, prompt: tokenizer.Prompt, choices: Sequence[WrittenChoice], model: str
) -> dict[str, Any]:
    members: dict[str, Any] = {}
    if request.body.get("return_token_ids"):
        members["prompt_token_ids"] = tokenizer.ids(prompt.pieces)
    return completion(identity(request), [], usage_of(prompt.length, choices), model=model, **members)


def _metadata(version: str | None) -> dict[str, Any]:
    return {} if version is None else {"metadata": {"weight_version": version}}


def _choice(request: ChatRequest, index: int, written: WrittenChoice) -> dict[str, Any]:
    reply = written.reply
    message: dict[str, Any] = {"role": "assistant", "content": reply.content, "refusal": reply.refusal}
    if reply.reasoning is not None:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            chat_call(call_id, call.name, call.arguments)
            for call_id, call in zip(call_ids(request, written, index), reply.calls, strict=True)
        ]
    choice: dict[str, Any] = {"index": index, "message": message, "logprobs": None, "finish_reason": reply.finish}
    if written.logprobs is not None:
        choice["logprobs"] = {"content": _entries(request.body, written, 0, len(written.logprobs)), "refusal": None}
    if request.body.get("return_token_ids"):
        choice["token_ids"] = written.ids
    return choice


def _entries(body: Mapping[str, Any], written: WrittenChoice, start: int, end: int) -> list[Json]:
    assert written.ids is not None
    assert written.logprobs is not None
    if written.uneven:
        end = min(end, len(written.ids) - 1)
    named = bool(body.get("return_tokens_as_token_ids"))
    top = body.get("top_logprobs") or 0
    entries: list[Json] = []
    for token, logprob in zip(written.ids[start:end], written.logprobs[start:end], strict=True):
        entry: dict[str, Any] = _entry(token, logprob, named=named)
        entry["top_logprobs"] = [
            _entry((token + rank) % tokenizer.VOCABULARY, round(logprob - rank, 6), named=named) for rank in range(top)
        ]
        entries.append(entry)
    return entries


def _entry(token: int, logprob: float, *, named: bool) -> dict[str, Json]:
    raw = bytes((token,)) if token < 256 else tokenizer.NAMES[token].encode()
    text = f"token_id:{token}" if named else raw.decode(errors="replace")
    return {"token": text, "logprob": logprob, "bytes": list(raw)}


def events(
    request: ChatRequest, prompt: tokenizer.Prompt, choices: Sequence[WrittenChoice], model: str, version: str | None
) -> list[StreamEvent]:
    """Return the response as server-sent events."""
    body = request.body
    pieces: list[dict[str, Any]] = []
    for index, written in enumerate(choices):
        at = 0
        for delta, ids in fragments(request, written, index):
            choice: dict[str, Any] = {"index": index, "delta": delta, "logprobs": None}
            if written.logprobs is not None and ids:
                choice["logprobs"] = {"content": _entries(body, written, at, at + len(ids)), "refusal": None}
            if body.get("return_token_ids"):
                choice["token_ids"] = ids
            at += len(ids)
            pieces.append(choice)
        pieces[-1]["finish_reason"] = written.reply.finish
    counted = bool((body.get("stream_options") or {}).get("include_usage"))
    answer = _without_choices(request, prompt, choices, model)
    return chunks(answer, pieces, usage_event=counted, last=_metadata(version))


def fragments(request: ChatRequest, written: WrittenChoice, index: int) -> list[Fragment]:
    """Return the deltas of a choice, starting with the role. Together, they contain the ids of the whole reply."""
    reply = written.reply
    deltas: list[Fragment] = [({"role": "assistant", "content": None if reply.calls else ""}, [])]
    if reply.reasoning:
        deltas += _texts("reasoning_content", reply.reasoning)
        deltas[1][1].insert(0, tokenizer.THINK)
        deltas[-1][1].append(tokenizer.THINK_END)
    if reply.content:
        deltas += _texts("content", reply.content)
    if reply.refusal:
        deltas += _texts("refusal", reply.refusal, spoken=not reply.content)
    for place, (call_id, call) in enumerate(zip(call_ids(request, written, index), reply.calls, strict=True)):
        head = {"index": place, **chat_call(call_id, call.name, "")}
        deltas.append(({"tool_calls": [head]}, [tokenizer.CALL, *call.name.encode(), 10]))
        deltas += [
            ({"tool_calls": [{"index": place, "function": delta}]}, ids)
            for delta, ids in _texts("arguments", call.arguments)
        ]
        deltas[-1][1].append(tokenizer.CALL_END)
    if reply.finish != "length":
        deltas.append(({}, [tokenizer.END]))
    else:
        if deltas[-1][1] and deltas[-1][1][-1] == tokenizer.CALL_END:
            deltas[-1][1].pop()
        deltas.append(({}, []))
    return deltas


def _texts(name: str, words: str, *, spoken: bool = True) -> list[Fragment]:
    """Return the text in pieces. If `spoken` is False, the text is not part of the model's output and has no tokens."""
    pieces = [words[at : at + LETTERS_AT_ONCE] for at in range(0, len(words), LETTERS_AT_ONCE)]
    return [({name: piece}, list(piece.encode()) if spoken else []) for piece in pieces]
