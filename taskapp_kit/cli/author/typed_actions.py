"""What a person types at `taskapp play`, as a policy's answer.

add {"amount": 2}     a tool and its arguments as JSON
add 2                 a tool and its arguments in order, or by name: add amount=2
2                     the arguments alone, where there is one tool
move_left do do       the words of a list, where the one argument is a list
Paris                 plain words, where the tool takes words
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from taskapp_kit.records.json_schema import read_schema
from taskapp_kit.records.protocols import Tool
from taskapp_kit.records.trajectory import Decision, ToolCall
from taskapp_kit.records.typed_values import typed_argument, typed_value


class NotUnderstood(ValueError):
    """The line is no action. The sentence says what was expected."""


def read_line(line: str, tools: Sequence[Tool]) -> Decision:
    """The answer that the line means. Raises NotUnderstood."""
    line = line.strip()
    by_name = {tool.name: tool for tool in tools}
    if line.startswith("{"):
        return _from_json(line, by_name)
    first, _, rest = line.partition(" ")
    if first in by_name:
        return _call(by_name[first], rest.strip())
    if len(tools) == 1:
        return _call(tools[0], line)
    if any(tool.text for tool in tools):
        return Decision(output=line)
    raise NotUnderstood(f"There is no tool {first[:80]!r}. The tools are: {', '.join(by_name)}.")


def _from_json(line: str, tools: Mapping[str, Tool]) -> Decision:
    given = _object(line)
    if given and set(given) <= set(tools):
        return Decision([ToolCall(name, {} if args is None else args) for name, args in given.items()])
    if len(tools) == 1:
        return Decision([ToolCall(next(iter(tools)), given)])
    raise NotUnderstood('Expected {"tool": {arguments}}. The tools are: ' + ", ".join(tools) + ".")


def _call(tool: Tool, rest: str) -> Decision:
    if rest.startswith("{"):
        return Decision([ToolCall(tool.name, _object(rest))])
    return Decision([ToolCall(tool.name, _arguments(tool, rest))], rest if tool.text else None)


def _arguments(tool: Tool, rest: str) -> dict[str, Any]:
    """The arguments that words after a tool's name mean."""
    fields = read_schema(tool.parameters).members
    if not rest:
        return {}
    if not fields:
        raise NotUnderstood(f"{tool.name} takes no arguments.")
    if len(fields) == 1:
        ((name, schema),) = fields.items()
        return {name: typed_argument(rest.removeprefix(f"{name}="), schema)}
    try:
        words = shlex.split(rest)
    except ValueError:
        raise NotUnderstood("A quotation mark is not closed.") from None
    arguments: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in fields:
            name, value = next((free for free in fields if free not in arguments), ""), word
        if not name:
            raise NotUnderstood(f"{tool.name} takes {len(fields)} arguments: {', '.join(fields)}.")
        arguments[name] = typed_value(value, fields[name])
    return arguments


def _object(text: str) -> dict[str, Any]:
    try:
        read = json.loads(text)
    except ValueError as error:
        raise NotUnderstood(f"That is not JSON: {error}.") from None
    if not isinstance(read, dict):
        raise NotUnderstood("Expected a JSON object.")
    return read
