"""The mock model's tokenizer. A token is a byte in UTF-8 or a special token above 255, so encoding is lossless.

The ids of a prompt consist of the tools, each message between BEGIN and END, and the start of the reply. If a client
appends the reply to the conversation, the next prompt begins with this prompt and this reply. Training from chat
completions relies on this property.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from taskapp_kit.testing.mock_model.reply import Call, Reply

BEGIN, END, CALL, CALL_END, TOOLS, THINK, THINK_END, IMAGE = range(256, 264)
NAMES = {
    BEGIN: "<|begin|>",
    END: "<|end|>",
    CALL: "<|call|>",
    CALL_END: "<|call_end|>",
    TOOLS: "<|tools|>",
    THINK: "<|think|>",
    THINK_END: "<|think_end|>",
    IMAGE: "<|image|>",
}
VOCABULARY = IMAGE + 1
IMAGE_TOKENS = 64
"""Number of tokens for an image of any size."""

Pieces = list[int | bytes]


class Prompt(NamedTuple):
    """The model's input and its number of tokens."""

    pieces: Pieces
    length: int


def prompt(body: Mapping[str, Any]) -> Prompt:
    """Return the prompt of a request: its conversation and the start of the reply."""
    found: Pieces = []
    if body.get("tools"):
        found += [TOOLS, orjson.dumps(body["tools"]), END]
    for message in body["messages"]:
        _message(message, found)
    found += (BEGIN, b"assistant\n")
    return Prompt(found, count(found))


def answer(reply: Reply, *, ended: bool = True) -> Pieces:
    """Return the pieces of a reply. If `ended` is set, they include the end token, which a truncated reply lacks."""
    found: Pieces = []
    _said(found, reply.reasoning, reply.content or reply.refusal, [(call.name, call.arguments) for call in reply.calls])
    if ended:
        found.append(END)
    elif found and found[-1] == CALL_END:
        found.pop()
    return found


def _message(message: Mapping[str, Any], found: Pieces) -> None:
    found += (BEGIN, message["role"].encode() + b"\n")
    content = message.get("content")
    words = content if isinstance(content, str) or content is None else None
    if isinstance(content, list):
        for part in content:
            kind = part.get("type")
            if kind == "text":
                found.append(part.get("text", "").encode())
            elif kind == "image_url":
                found += [IMAGE] * IMAGE_TOKENS
            else:
                found.append(orjson.dumps(part))
    calls = message.get("tool_calls") or ()
    thought = message.get("reasoning_content") or message.get("reasoning")
    _said(
        found,
        thought if isinstance(thought, str) else None,
        words or message.get("refusal"),
        [(call["function"]["name"], call["function"]["arguments"]) for call in calls],
    )
    found.append(END)


def _said(found: Pieces, thought: str | None, words: str | None, calls: Sequence[tuple[str, str]]) -> None:
    if thought:
        found += (THINK, thought.encode(), THINK_END)
    if words:
        found.append(words.encode())
    for name, arguments in calls:
        found += (CALL, f"{name}\n{arguments}".encode(), CALL_END)


def count(pieces: Iterable[int | bytes]) -> int:
    """Return the number of tokens."""
    total = 0
    for piece in pieces:  # a loop with `type`, because counting takes a third of the time of a long conversation
        total += 1 if type(piece) is int else len(piece)  # type: ignore[arg-type]
    return total


def ids(pieces: Iterable[int | bytes]) -> list[int]:
    """Return the ids of the tokens."""
    found: list[int] = []
    for piece in pieces:
        if isinstance(piece, int):
            found.append(piece)
        else:
            found.extend(piece)
    return found


def text(tokens: Iterable[int]) -> str:
    """Decode token ids, with names for special tokens. For ids without special tokens, `text` is the inverse of `ids`."""
    found = bytearray()
    for token in tokens:
        found += token.to_bytes(1, "big") if token < 256 else NAMES[token].encode()
    return found.decode(errors="replace")


def cut(reply: Reply, limit: int) -> Reply:
    """Return the reply, truncated to `limit` tokens if it is longer. A truncated reply has the finish reason `length`.

    Characters and tool names are not split, so a truncated reply may be shorter than the limit.
    """
    if count(answer(reply)) <= limit:
        return reply
    short = Reply(finish_reason="length", refusal=None)
    if reply.reasoning:
        short.reasoning = _first(reply.reasoning, limit - 2)
        limit -= 2 + len(reply.reasoning.encode())
    words = reply.content or reply.refusal
    if words and limit > 0:
        short.content = _first(words, limit)
        limit -= len(words.encode())
    for call in reply.calls:
        room = limit - len(call.name.encode()) - 2
        if room < 0:
            break
        short.calls.append(Call(call.name, _first(call.arguments, room)))
        limit = room - len(call.arguments.encode()) - 1
    return short


def _first(words: str, limit: int) -> str:
    return words.encode()[: max(0, limit)].decode(errors="ignore")
