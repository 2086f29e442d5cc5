"""Normalizes the messages of a chat-completions request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taskapp_kit.errors import FieldProblem, RequestError
from taskapp_kit.net.body import read_object
from taskapp_kit.records.content import without_surrogates

ROLES = ("system", "developer", "user", "assistant", "tool")
UNSUPPORTED = "unsupported_message"
"""The code of a request with a message that cannot be rendered."""
_REASONING = ("reasoning_content", "reasoning", "thinking")
_NO_ARGUMENTS = ("", "null")
"""Values of `arguments` that endpoints return for a call without arguments."""


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A tool call in an assistant message. `arguments` is an object, or the client's original value if it is not an object."""

    name: str
    arguments: Any

    def arguments_json(self) -> str:
        """Return the arguments as JSON in the format of chat templates."""
        return self.arguments if isinstance(self.arguments, str) else to_json(self.arguments)


@dataclass(frozen=True, slots=True)
class NormalMessage:
    """A normalized message. `role` is one of ROLES, with `developer` replaced by `system`."""

    role: str
    text: str
    calls: tuple[FunctionCall, ...] = ()


def to_json(value: Any, indent: int | None = None) -> str:
    """Return JSON in the format of `tojson` in chat templates: fields in order, non-ASCII characters unescaped."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def read_json_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object in a string, or None if the string is not a JSON object.

    Sampled text is as untrusted as a request, so the limits for request bodies apply (nesting, NaN, surrogates).
    """
    try:
        return read_object(without_surrogates(text).encode())
    except RequestError:
        return None


def reasoning_of(message: Mapping[str, Any]) -> str:
    """Return the reasoning of an assistant's message that is separate from its content, or ""."""
    return next((text for name in _REASONING if isinstance(text := message.get(name), str) and text.strip()), "")


def read_call(text: str, member: str) -> FunctionCall | None:
    """Parse a tool call: a JSON object with `name`, and arguments in the field named by `member`. Else return None."""
    call = read_json_object(text) or {}
    name, arguments = call.get("name"), call.get(member, {})
    return FunctionCall(name, arguments) if isinstance(name, str) and isinstance(arguments, dict) else None


def normal_messages(messages: Sequence[Mapping[str, Any]]) -> list[NormalMessage]:
    """Return the normalized messages.

    `content` may be null, a string or a list of text parts, which are joined by newlines. Fields that no template
    renders (`name`, `tool_call_id`, `reasoning_content`, …) are ignored, so messages that differ only in these fields
    are equal. Raises RequestError, with the location, for an unknown role or a part that is not text.
    """
    return [_normal(message, index) for index, message in enumerate(messages)]


def _normal(message: Mapping[str, Any], index: int) -> NormalMessage:
    role = message.get("role")
    if role not in ROLES:
        raise _unsupported(index, "role", f"expected one of {', '.join(ROLES)}")
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(_text(part, index) for part in content)
    if content is not None and not isinstance(content, str):
        raise _unsupported(index, "content", "expected a string, a list of text parts, or null")
    calls = message.get("tool_calls") or [] if role == "assistant" else []
    if not isinstance(calls, list):
        raise _unsupported(index, "tool_calls", "expected a list")
    return NormalMessage(
        "system" if role == "developer" else str(role), content or "", tuple(_call(call, index) for call in calls)
    )


def _text(part: Any, index: int) -> str:
    text = part.get("text") if isinstance(part, Mapping) else part
    if not isinstance(text, str):
        raise _unsupported(
            index, "content", "expected only text parts, because this policy accepts neither images nor audio"
        )
    return text


def _call(call: Any, index: int) -> FunctionCall:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise _unsupported(index, "tool_calls", 'expected {"function": {"name": …, "arguments": …}} for each call')
    arguments = function.get("arguments")
    if isinstance(arguments, str) and arguments.strip() in _NO_ARGUMENTS:
        arguments = None
    elif isinstance(arguments, str):
        parsed = read_json_object(arguments)
        arguments = arguments if parsed is None else parsed
    return FunctionCall(function["name"], {} if arguments is None else arguments)


def _unsupported(index: int, member: str, expected: str) -> RequestError:
    return RequestError(
        f"messages.{index}.{member} cannot be rendered: {expected}.",
        fields=(FieldProblem(("messages", index, member), expected),),
        code=UNSUPPORTED,
    )
