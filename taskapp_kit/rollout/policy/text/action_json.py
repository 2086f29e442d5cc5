"""Finds the actions in JSON that a model wrote.

Accepted as one action: `{"tool": NAME, "arguments": {…}}` (also `name`, `function`, `action`; also `args`, `parameters`,
`input`), the same with the arguments beside the name, OpenAI's `{"type": "function", "function": {…}}`, and
`{NAME: {…}}`. A list of them, or a list under `actions` or `tool_calls`, is several actions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from taskapp_kit.records.content import Json
from taskapp_kit.records.protocols import Tool
from taskapp_kit.records.trajectory import ToolCall
from taskapp_kit.rollout.policy.parsed_message import UnreadableJson, decode, recordable

NAME_WORDS = ("tool", "name", "tool_name", "function", "action")
ARGUMENT_WORDS = ("arguments", "args", "parameters", "input", "tool_input", "action_input")
ONE_WORDS = ("action", "tool_call", "function_call", "function", "tool")
SEVERAL_WORDS = ("actions", "tool_calls", "calls")
SIDE_WORDS = frozenset({"thought", "thoughts", "reasoning", "reason", "explanation", "id", "type", "index"})
WRAPPINGS = 4


def actions_in(value: Json, tools: Mapping[str, Tool], *, bare: bool = True) -> list[ToolCall] | None:
    """Reads a JSON value as actions, in order; None when it is none. Raises UnreadableJson.

    bare: also accepts an object of arguments without a tool's name, where there is only one tool.
    """
    found = _actions(value, tools, WRAPPINGS)
    if found is None and bare and isinstance(value, Mapping) and value:
        only = [tool for tool in tools.values() if not tool.text]
        if len(only) == 1 and set(value) <= set(only[0].parameters.get("properties", {})):
            found = [_call(only[0].name, value, tools)]
    return found


def _actions(value: Json, tools: Mapping[str, Tool], depth: int) -> list[ToolCall] | None:
    if depth == 0:
        return None
    if isinstance(value, list):
        parts = [_actions(item, tools, depth - 1) for item in value]
        return [call for part in parts for call in part or ()] if parts and None not in parts else None
    if not isinstance(value, Mapping):
        return None
    return (
        _named(value, tools)
        or _keyed(value, tools)
        or _wrapped(value, SEVERAL_WORDS, tools, depth)
        or _wrapped(value, ONE_WORDS, tools, depth)
    )


def _wrapped(
    value: Mapping[str, Json], words: tuple[str, ...], tools: Mapping[str, Tool], depth: int
) -> list[ToolCall] | None:
    for word in words:
        if isinstance(value.get(word), Mapping | list):
            found = _actions(value[word], tools, depth - 1)
            if found:
                return found
    return None


def _named(value: Mapping[str, Json], tools: Mapping[str, Tool]) -> list[ToolCall] | None:
    """Reads `{"tool": NAME, "arguments": {…}}`, or the arguments beside the name.

    An unknown tool's name is accepted only with a member for its arguments.
    """
    for word in NAME_WORDS:
        name = value.get(word)
        if not isinstance(name, str):
            continue
        name = name.strip()
        for second in ARGUMENT_WORDS:
            if second in value:
                return [_call(name, value[second], tools)]
        if name in tools:
            rest = {key: part for key, part in value.items() if key != word}
            known = tools[name].parameters.get("properties", {})
            return [_call(name, {key: p for key, p in rest.items() if key in known or key not in SIDE_WORDS}, tools)]
        if set(value) <= {word, *SIDE_WORDS} and word in ("tool", "tool_name"):
            return [ToolCall(str(recordable(name)), {})]
    return None


def _keyed(value: Mapping[str, Json], tools: Mapping[str, Tool]) -> list[ToolCall] | None:
    """Reads `{NAME: {…}}`, with optional members of explanation beside it."""
    named = [key for key in value if key in tools]
    plainly = len(value) == 1 or all(isinstance(value[key], Mapping) or value[key] is None for key in named)
    others = any(isinstance(part, Mapping | list) for key, part in value.items() if key not in tools)
    return [_call(key, value[key], tools) for key in named] if named and plainly and not others else None


def _call(name: str, given: Json, tools: Mapping[str, Tool]) -> ToolCall:
    """The call; a value that is no object becomes the argument of a tool that takes one."""
    if isinstance(given, str) and given.lstrip()[:1] == "{":
        with contextlib.suppress(UnreadableJson):  # a plain text may begin with a brace
            given = decode(given)
    if given is None or given == "":
        given = {}
    tool = tools.get(name)
    if tool is not None and not isinstance(given, Mapping):
        names = tuple(tool.parameters.get("properties", {}))
        if len(names) == 1:
            given = {names[0]: given}
    return ToolCall(str(recordable(name)), recordable(given))


def value_of(text: str, schema: Any) -> Json:
    """The value of a tag's text: the text where the schema accepts a string, else JSON if it parses, else the text."""
    kinds = _kinds(schema)
    if text.startswith("\n") and text.endswith("\n"):
        text = text[1:-1]
    if "string" in kinds:
        return text
    try:
        return recordable(decode(text))
    except UnreadableJson:
        return recordable(text.strip())


def _kinds(schema: Any) -> set[str]:
    if not isinstance(schema, Mapping):
        return set()
    kind = schema.get("type")
    found = set(kind) if isinstance(kind, list) else {str(kind)}
    for choice in schema.get("enum", ()):
        if isinstance(choice, str):
            found.add("string")
    for word in ("anyOf", "oneOf", "allOf"):
        for branch in schema.get(word, ()):
            found |= _kinds(branch)
    return found
