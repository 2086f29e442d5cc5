"""The assistant's message as an endpoint gave it: its words, its tool calls, and the message as it goes back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from taskapp_kit.contract.content import INT_LIMIT, Json, without_surrogates
from taskapp_kit.contract.protocols import Tool
from taskapp_kit.contract.trajectory import ToolCall
from taskapp_kit.rollout.policy.example_arguments import example_arguments
from taskapp_kit.rollout.policy.text.action_json import UnreadableJson, decode_arguments

THOUGHTS = ("reasoning_content", "reasoning", "reasoning_details", "thinking", "thinking_blocks")
"""The members in which endpoints give a model's thoughts."""
NEVER_BACK = ("annotations", "audio", "function_call")
"""What endpoints give and do not take."""
DEEPEST = 32


@dataclass(slots=True)
class ParsedMessage:
    """What the model said.

    message: as it is kept, everything that the endpoint gave but empty members. back: as it is sent again; it differs
    only where an endpoint could not read its own message (`rewritten` arguments). problem: of calls that cannot be read.
    left_out_calls: tool calls that were too many to be read; they are in none of the two.
    """

    message: dict[str, Json]
    back: dict[str, Json]
    words: str | None = None
    calls: list[ToolCall] = field(default_factory=list)
    problem: str | None = None
    rewritten: int = 0
    left_out_calls: int = 0


def parse_message(
    given: Mapping[str, Any],
    tools: Mapping[str, Tool],
    turn: int,
    *,
    thoughts: bool = True,
    most_calls: int | None = None,
) -> ParsedMessage:
    """Reads a message, whatever is in it; never raises.

    thoughts: False leaves them out of what goes back. most_calls: tool calls after so many are left out of everything.
    """
    message: dict[str, Json] = {"role": "assistant"}
    left_out = 0
    for name, part in given.items():
        if name == "tool_calls" and most_calls is not None and isinstance(part, list):
            left_out = max(0, len(part) - most_calls)
            part = part[:most_calls]  # before they are looked at: there may be any number of them
        kept = clean(part)
        if name not in ("role", *NEVER_BACK) and kept is not None and kept != [] and isinstance(name, str):
            message[clean(name)] = kept
    calls = message.pop("tool_calls", None)
    heard = ParsedMessage(message, message, left_out_calls=left_out)
    if not isinstance(message.get("refusal"), str):
        message.pop("refusal", None)
    said = message.get("content")
    if isinstance(said, list):
        said = [part for part in said if _is_part(part)] or _words(said)
    elif said is not None and not isinstance(said, str):
        said = orjson.dumps(said).decode()
    if said is not None:
        message["content"] = said
    heard.words = _words(said) or _words(message.get("refusal")) or None
    if isinstance(calls, list):
        _parse_calls([call for call in calls if isinstance(call, dict)], heard, tools, turn)
    if not heard.calls and heard.message.get("content") is None:
        heard.message["content"] = ""  # a message without calls needs words
        heard.back = heard.message if heard.back is heard.message else {**heard.back, "content": ""}
    if not thoughts:
        heard.back = {name: part for name, part in heard.back.items() if name not in THOUGHTS}
    return heard


def _parse_calls(given: list[dict[str, Any]], heard: ParsedMessage, tools: Mapping[str, Tool], turn: int) -> None:
    kept: list[Json] = []
    back: list[Json] = []
    problems: list[str] = []
    seen: set[str] = set()
    for index, call in enumerate(given):
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        name = function.get("name")
        name = name if isinstance(name, str) else ""
        identity = call.get("id")
        if not isinstance(identity, str) or not identity or identity in seen:
            identity = f"call_{turn}_{index}"
            while identity in seen:
                identity += "_"
        seen.add(identity)
        written = function.get("arguments")
        text = written if isinstance(written, str) else orjson.dumps({} if written is None else written).decode()
        args: Json = text
        try:
            args = decode_arguments(text)
        except UnreadableJson as error:
            problems.append(_unread(name, str(error), tools))
        heard.calls.append(ToolCall(name, args, identity))
        told = {**{key: part for key, part in call.items() if key != "index"}, "id": identity, "type": "function"}
        kept.append({**told, "function": {**function, "name": name, "arguments": text}})
        back.append(kept[-1])
        if not _sendable(text, args) or not name:
            readable = orjson.dumps(args if isinstance(args, dict) else {"unreadable": text}).decode()
            heard.rewritten += 1
            back[-1] = {**told, "function": {**function, "name": name or "unknown", "arguments": readable}}
    if not heard.calls:
        return
    heard.problem = " ".join(problems) or None
    heard.message = {**heard.message, "tool_calls": kept}
    heard.message.setdefault("content", None)
    heard.back = heard.message if not heard.rewritten else {**heard.message, "tool_calls": back}


def _unread(name: str, why: str, tools: Mapping[str, Tool]) -> str:
    wanted = "a JSON object"
    if name in tools:
        wanted += f", for example {orjson.dumps(example_arguments(tools[name]), default=dict).decode()}"
    return f"{name[:80] or 'The call'} was not done: its arguments are not JSON ({why}). Give {wanted}."


def _sendable(text: str, args: Json) -> bool:
    """True when the arguments are a JSON object as they stand: chat templates read those of earlier turns, and fail."""
    if not isinstance(args, dict):
        return False
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def _is_part(part: Json) -> bool:
    """True for a part of a message's content as endpoints take it back."""
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        return False
    return part["type"] != "text" or isinstance(part.get("text"), str)


def _words(said: Json) -> str:
    """The words of a message's content, which may come in parts."""
    if isinstance(said, str):
        return said
    if isinstance(said, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in said]
        return "".join(part for part in parts if isinstance(part, str))
    return ""


def clean(value: Any, depth: int = DEEPEST) -> Json:
    """The value as it can be recorded, whatever it was: valid text, finite numbers of 64 bits; None for the rest."""
    if isinstance(value, str):
        return without_surrogates(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if -INT_LIMIT <= value < INT_LIMIT else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth == 0:
        return None
    if type(value) is dict or isinstance(value, Mapping):
        return {clean(key): clean(part, depth - 1) for key, part in value.items() if isinstance(key, str)}
    if isinstance(value, list | tuple):
        return [clean(part, depth - 1) for part in value]
    return None
