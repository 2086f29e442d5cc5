"""Parses a model's message and the JSON in it, and builds the message that is sent back in later turns."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import orjson

from taskapp_kit.records.content import INT_LIMIT, Json, NotJson, plain, without_surrogates
from taskapp_kit.records.protocols import Tool
from taskapp_kit.records.trajectory import ToolCall
from taskapp_kit.rollout.policy.sampling import example_arguments

THOUGHTS = ("reasoning_content", "reasoning", "reasoning_details", "thinking", "thinking_blocks")
"""The fields in which endpoints return a model's reasoning."""
NEVER_BACK = ("annotations", "audio", "function_call")
"""Fields that endpoints return but do not accept in a request."""
DEEPEST = 32
SHOWN = 60


@dataclass(slots=True)
class ParsedMessage:
    """A model's message after parsing.

    message: the message to record, with all fields that the endpoint returned except empty fields. back: the message to send
    in later turns. problem: describes calls that cannot be parsed. rewritten: the number of calls whose arguments were
    changed in `back`, because endpoints could not parse them. left_out_calls: the number of calls over the limit, which are
    in neither message.
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
    """Parse a model's message. Never raises.

    thoughts: whether `back` contains the reasoning. most_calls: the number of tool calls to parse. Further calls are dropped.
    """
    message: dict[str, Json] = {"role": "assistant"}
    left_out = 0
    for name, part in given.items():
        if name == "tool_calls" and most_calls is not None and isinstance(part, list):
            left_out = max(0, len(part) - most_calls)
            part = part[:most_calls]  # before parsing, because a message may have any number of calls
        cleaned = clean(part)
        if name not in ("role", *NEVER_BACK) and cleaned is not None and cleaned != [] and isinstance(name, str):
            message[clean(name)] = cleaned
    calls = message.pop("tool_calls", None)
    parsed = ParsedMessage(message, message, left_out_calls=left_out)
    if not isinstance(message.get("refusal"), str):
        message.pop("refusal", None)
    content = message.get("content")
    if isinstance(content, list):
        content = [part for part in content if _is_part(part)] or _text_of(content)
    elif content is not None and not isinstance(content, str):
        content = orjson.dumps(content).decode()
    if content is not None:
        message["content"] = content
    # a refusal is text that the model wrote, and the environment may have an action for text
    parsed.words = _text_of(content) or _text_of(message.get("refusal")) or None
    if isinstance(calls, list):
        _parse_calls([call for call in calls if isinstance(call, dict)], parsed, tools, turn)
    if not parsed.calls and parsed.message.get("content") is None:
        parsed.message["content"] = ""  # a message without calls must have content
        parsed.back = parsed.message if parsed.back is parsed.message else {**parsed.back, "content": ""}
    if not thoughts:
        parsed.back = {name: part for name, part in parsed.back.items() if name not in THOUGHTS}
    return parsed


def _parse_calls(given: list[dict[str, Any]], parsed: ParsedMessage, tools: Mapping[str, Tool], turn: int) -> None:
    recorded: list[Json] = []
    back: list[Json] = []
    problems: list[str] = []
    seen: set[str] = set()
    for index, call in enumerate(given):
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        name = function.get("name")
        name = name if isinstance(name, str) else ""
        identity = call.get("id")
        # results of two calls must not have the same id
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
            problems.append(_arguments_problem(name, str(error), tools))
        parsed.calls.append(ToolCall(name, args, identity))
        call_members = {
            # `index` is for streams, and vendors reject it in a request
            **{key: part for key, part in call.items() if key != "index"},
            "id": identity,
            "type": "function",
        }
        recorded.append({**call_members, "function": {**function, "name": name, "arguments": text}})
        back.append(recorded[-1])
        # Chat templates parse the arguments of earlier turns and fail in every later turn if one is not a JSON object.
        # The record contains the original.
        if not _sendable(text, args) or not name:
            readable = orjson.dumps(args if isinstance(args, dict) else {"unreadable": text}).decode()
            parsed.rewritten += 1
            back[-1] = {**call_members, "function": {**function, "name": name or "unknown", "arguments": readable}}
    if not parsed.calls:
        return
    parsed.problem = " ".join(problems) or None
    parsed.message = {**parsed.message, "tool_calls": recorded}
    parsed.message.setdefault("content", None)
    parsed.back = parsed.message if not parsed.rewritten else {**parsed.message, "tool_calls": back}


def _arguments_problem(name: str, why: str, tools: Mapping[str, Tool]) -> str:
    wanted = "a JSON object"
    if name in tools:
        wanted += f", for example {orjson.dumps(example_arguments(tools[name]), default=dict).decode()}"
    return f"{name[:80] or 'The call'} was not done: its arguments are not JSON ({why}). Give {wanted}."


def _sendable(text: str, args: Json) -> bool:
    """Return whether the arguments are a JSON object, because chat templates parse the arguments of earlier turns."""
    if not isinstance(args, dict):
        return False
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def _is_part(part: Json) -> bool:
    """Return whether endpoints accept this part of a message's content in a request."""
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        return False
    return part["type"] != "text" or isinstance(part.get("text"), str)


def _text_of(content: Json) -> str:
    """Return the text in a message's content, which may be a str or a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        return "".join(part for part in parts if isinstance(part, str))
    return ""


def clean(value: Any, depth: int = DEEPEST) -> Json:
    """Return the value with valid strings and finite 64-bit numbers, so that it can be recorded. Other values become None."""
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


# -- JSON that a model wrote ------------------------------------------------------------------------------------------


class UnreadableJson(ValueError):
    """A string is not valid JSON, or its value cannot be recorded. The model reads the text of this exception.

    read: the number of characters that were parsed.
    """

    def __init__(self, message: str, read: int = 0) -> None:
        super().__init__(message)
        self.read = read


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number in JSON")


# not strict, because models write line breaks inside strings
_DECODER = json.JSONDecoder(parse_constant=_refuse, strict=False)


def decode_at(text: str, start: int) -> tuple[Json, int]:
    """Return the JSON value that begins at `start`, and the index of its end. Raises UnreadableJson for invalid JSON."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except RecursionError:
        raise UnreadableJson("it is nested too deeply", 4096) from None
    except json.JSONDecodeError as error:
        near = text[max(start, error.pos - SHOWN // 2) : error.pos + SHOWN // 2]
        words = error.msg[:1].lower() + error.msg[1:]
        raise UnreadableJson(
            f"{words} at character {error.pos - start + 1}, near {near!r}", error.pos - start
        ) from None
    except ValueError as error:  # NaN, or an integer with thousands of digits
        raise UnreadableJson(str(error).partition(";")[0][:200], 4096) from None
    return value, end


def decode(text: str) -> Json:
    """Decode a string with one JSON value and optional surrounding space. Raises UnreadableJson for invalid JSON."""
    start = len(text) - len(text.lstrip())
    value, end = decode_at(text, start)
    if text[end:].strip():
        raise UnreadableJson(f"something follows the JSON: {text[end:].strip()[:SHOWN]!r}")
    return value


def decode_arguments(text: str) -> Json:
    """Decode a tool call's arguments. A surrounding code fence is removed, and doubly encoded JSON is decoded twice.

    An empty string is decoded as `{}`. Raises UnreadableJson for invalid JSON.
    """
    stripped = text.strip()
    if not stripped:
        return {}
    # some models write a code block, although only JSON was requested
    if stripped.startswith("```") and stripped.endswith("```") and len(stripped) > 6:
        stripped = stripped[3:-3].partition("\n")[2] if "\n" in stripped else stripped[3:-3].removeprefix("json")
    value = decode(stripped)
    # some servers encode arguments twice
    if isinstance(value, str) and value.lstrip()[:1] == "{":
        value = decode(value)
    return recordable({} if value is None else value)


def recordable(value: Json) -> Json:
    """Return the value if it can be recorded. Raises UnreadableJson for bad numbers or strings, and for deep nesting."""
    try:
        return plain(value, "arguments")
    except NotJson as error:
        raise UnreadableJson(str(error)) from None
