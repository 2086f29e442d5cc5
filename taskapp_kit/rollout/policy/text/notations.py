"""The notations in which models write actions: JSON, Hermes' and Qwen's `<tool_call>`, `<function=…>`, `[TOOL_CALLS]`, tags.

One action in JSON is `{"tool": NAME, "arguments": {…}}`, a flat object with the arguments next to the name, OpenAI's
`{"type": "function", "function": {…}}`, or `{NAME: {…}}`. `name`, `function` and `action` are accepted for `tool`, and
`args`, `parameters` and `input` for `arguments`. A list, also inside `actions` or `tool_calls`, means several actions.

Each search for tags runs forwards once, and a missing closing tag is searched for only once, so hostile text also takes
linear time.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from taskapp_kit.records.content import Json
from taskapp_kit.records.protocols import Tool
from taskapp_kit.records.trajectory import ToolCall
from taskapp_kit.rollout.policy.parsed_message import UnreadableJson, decode, decode_at, recordable

NAME_WORDS = ("tool", "name", "tool_name", "function", "action")
ARGUMENT_WORDS = ("arguments", "args", "parameters", "input", "tool_input", "action_input")
ONE_WORDS = ("action", "tool_call", "function_call", "function", "tool")
SEVERAL_WORDS = ("actions", "tool_calls", "calls")
SIDE_WORDS = frozenset({"thought", "thoughts", "reasoning", "reason", "explanation", "id", "type", "index"})
WRAPPINGS = 4
TAGS = 256
CHILDREN = 64
"""The maximum number of tags in an answer or inside one tag. Further tags are ignored."""


def actions_in(value: Json, tools: Mapping[str, Tool], *, bare: bool = True) -> list[ToolCall] | None:
    """Parse a JSON value as actions, in order. Return None if it is not an action. Raises UnreadableJson for bad arguments.

    bare: whether to accept an object of arguments without a tool's name if there is only one tool.
    """
    found = _actions(value, tools, WRAPPINGS)
    # with a single tool, the name carries no information
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
    """Parse `{"tool": NAME, "arguments": {…}}`, or the arguments next to the name.

    The name of an unknown tool is only accepted together with a field for the arguments.
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
        # with other fields it may be data, such as {"name": "Ada", "age": 3}
        if set(value) <= {word, *SIDE_WORDS} and word in ("tool", "tool_name"):
            return [ToolCall(str(recordable(name)), {})]
    return None


def _keyed(value: Mapping[str, Json], tools: Mapping[str, Tool]) -> list[ToolCall] | None:
    """Parse `{NAME: {…}}`, with optional fields for an explanation next to it."""
    named = [key for key in value if key in tools]
    plainly = len(value) == 1 or all(isinstance(value[key], Mapping) or value[key] is None for key in named)
    # a model that repeats the observation may write a tool's name as a field
    others = any(isinstance(part, Mapping | list) for key, part in value.items() if key not in tools)
    return [_call(key, value[key], tools) for key in named] if named and plainly and not others else None


def _call(name: str, given: Json, tools: Mapping[str, Tool]) -> ToolCall:
    """Return the call. A value that is not an object becomes the argument of a tool with one parameter."""
    if isinstance(given, str) and given.lstrip()[:1] == "{":
        # OpenAI writes arguments as a JSON string, and some models copy this format
        with contextlib.suppress(UnreadableJson):  # plain text may also begin with a brace
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
    """Return the value of a tag: the text if the schema accepts a string or the text is not JSON, or else the decoded JSON."""
    kinds = _kinds(schema)
    # Qwen's template writes each value on separate lines
    if text.startswith("\n") and text.endswith("\n"):
        text = text[1:-1]
    # if the tool accepts a string, text that looks like JSON, such as "1", stays a string
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


@dataclass(slots=True)
class TagMatch:
    """The result of one parser. several: whether several actions are clearly intended. broken: why a call is invalid."""

    calls: list[ToolCall] = field(default_factory=list)
    several: bool = False
    broken: str | None = None


class ClosingTags:
    """Finds closing tags. Missing tags are remembered and not searched again."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._missing: set[str] = set()

    def after(self, closing: str, start: int) -> int:
        """Return the index of `closing` at or after `start`, or -1. `start` must not decrease between calls."""
        if closing in self._missing:
            return -1
        at = self._text.find(closing, start)
        if at < 0:
            self._missing.add(closing)
        return at


# Repetitions are bounded, because unbounded repetitions take quadratic time for hostile text.
_MARKS = re.compile(
    r"<(?P<tag>tool_calls?|function_calls?)>|<function=(?P<function>[\w.-]{1,64})>"
    r"|(?P<list>\[TOOL_CALLS\])|(?P<python><\|python_tag\|>)"
)
_MISTRAL = re.compile(r"\s*([\w.-]{1,64})\s*(?:\[ARGS\])?\s*(?=\{)")
_CHILD = re.compile(r"<([A-Za-z_][\w.-]{0,63})>")
_PARAMETER = re.compile(r"<parameter=([\w.-]{1,64})>")
_INNER_FUNCTION = re.compile(r"<function=([\w.-]{1,64})>")


def marked(text: str, tools: Mapping[str, Tool]) -> TagMatch:
    """Parse tool calls in the notations of chat templates. Each call is one action."""
    found = TagMatch(several=True)
    closings = ClosingTags(text)
    at = 0
    for _ in range(TAGS):
        mark = _MARKS.search(text, at)
        if mark is None:
            break
        start = mark.end()
        try:
            if mark["function"]:
                end = closings.after("</function>", start)
                at = len(text) if end < 0 else end + len("</function>")
                found.calls.append(_function(mark["function"], text[start : end if end >= 0 else at], tools))
            elif mark["tag"]:
                closing = f"</{mark['tag']}>"
                end = closings.after(closing, start)
                at = len(text) if end < 0 else end + len(closing)
                found.calls += _body(text[start : end if end >= 0 else at], tools, f"<{mark['tag']}>")
            else:
                calls, at = _listed(text, start, tools, mark[0])
                found.calls += calls
        except UnreadableJson as error:
            found.broken = str(error)
            break
    # all or nothing, because executing only the valid calls would reward an answer that the model did not write
    if found.broken is not None:
        found.calls = []
    return found


def _listed(text: str, start: int, tools: Mapping[str, Tool], mark: str) -> tuple[list[ToolCall], int]:
    """Parse JSON values separated by `;` or `,`, or Mistral's `name[ARGS]{…}`. Return the calls and the index of the end."""
    calls: list[ToolCall] = []
    at = start
    while True:
        while at < len(text) and text[at] in " \t\r\n;,":
            at += 1
        named = _MISTRAL.match(text, at)
        if named is not None:
            value, at = decode_at(text, named.end())
            calls.append(ToolCall(named[1], recordable(value)))
        elif text[at : at + 1] in ("{", "["):
            value, at = _decoded(text, at, mark)
            calls += _known(actions_in(value, tools), mark)
        elif calls:
            return calls, at
        else:
            raise UnreadableJson(f"after {mark} stands no JSON")


def _decoded(text: str, at: int, mark: str) -> tuple[object, int]:
    try:
        return decode_at(text, at)
    except UnreadableJson as error:
        raise UnreadableJson(f"the JSON after {mark} cannot be read: {error}") from None


def _known(calls: list[ToolCall] | None, mark: str) -> list[ToolCall]:
    if not calls:
        raise UnreadableJson(f"the JSON after {mark} names no tool")
    return calls


def _body(body: str, tools: Mapping[str, Tool], tag: str) -> list[ToolCall]:
    """Parse the body of `<tool_call>`: JSON values, `<function=…>`, a tag with a tool's name, or only a name."""
    stripped = body.strip()
    function = _INNER_FUNCTION.search(stripped)
    if function is not None:
        return [_function(function[1], stripped[function.end() :].partition("</function>")[0], tools)]
    if stripped[:1] in ("{", "["):
        return _listed(stripped, 0, tools, tag)[0]
    calls = tagged(stripped, tools).calls or [*bare(stripped, tools)]
    if not calls:
        raise UnreadableJson(f"in {tag} stands no JSON: {stripped[:60]!r}")
    return calls


def _function(name: str, body: str, tools: Mapping[str, Tool]) -> ToolCall:
    """Parse the body of `<function=NAME>`: JSON, or `<parameter=…>` tags."""
    stripped = body.strip()
    if stripped[:1] == "{":
        return ToolCall(name, recordable(_decoded(stripped, 0, f"<function={name}>")[0]))
    properties = tools[name].parameters.get("properties", {}) if name in tools else {}
    given: dict[str, object] = {}
    marks = list(_PARAMETER.finditer(body))
    for index, mark in enumerate(marks):
        limit = marks[index + 1].start() if index + 1 < len(marks) else len(body)
        end = body.find("</parameter>", mark.end(), limit)
        end = limit if end < 0 else end
        given[mark[1]] = value_of(body[mark.end() : end], properties.get(mark[1]))
    if stripped and not marks:
        raise UnreadableJson(f"in <function={name}> stands neither JSON nor <parameter=…>: {stripped[:60]!r}")
    return ToolCall(name, given)


@lru_cache(maxsize=256)
def _opening(names: tuple[str, ...]) -> re.Pattern[str]:
    words = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.compile(rf"<({words}|action|answer)(?![\w.-])([^<>]{{0,2000}})>")


_ATTRIBUTE = re.compile(r"""([A-Za-z_][\w.-]{0,63})\s{0,8}=\s{0,8}(?:"([^"]*)"|'([^']*)')""")


def tagged(text: str, tools: Mapping[str, Tool]) -> TagMatch:
    """Parse `<NAME>…</NAME>` that contains JSON, argument tags or one argument, and `<action>…</action>`."""
    found = TagMatch()
    closings = ClosingTags(text)
    at = 0
    opening = _opening(tuple(tools))
    for _ in range(TAGS):
        mark = opening.search(text, at)
        if mark is None:
            break
        name, inside = mark[1], mark[2]
        at = mark.end()
        body = ""
        if not inside.rstrip().endswith("/"):
            end = closings.after(f"</{name}>", at)
            if end < 0 and (name not in tools or tools[name].parameters.get("required")):
                if name in tools and found.broken is None:
                    found.broken = f"<{name}> is not closed by </{name}>"
                continue
            if end >= 0:
                body, at = text[at:end], end + len(name) + 3
        try:
            if name in tools:
                found.calls.append(_tool(tools[name], inside, body))
            else:
                found.calls += _in_action(name, body, tools)
        except UnreadableJson as error:
            found.broken = found.broken or str(error)
    return found


def _in_action(name: str, body: str, tools: Mapping[str, Tool]) -> list[ToolCall]:
    """Parse the body of `<action>` or `<answer>`."""
    stripped = body.strip()
    if stripped[:1] in ("{", "["):
        value, _ = _decoded(stripped, 0, f"<{name}>")
        return _known(actions_in(value, tools), f"<{name}>")
    calls = [*bare(stripped, tools)]
    if not calls and "<" in stripped:
        calls = tagged(stripped.replace("<action", "<"), tools).calls  # accept only one level of wrapping
    only = word_tool(tools)
    if not calls and name == "answer" and only is not None:
        calls = [ToolCall(only[0].name, {only[1]: stripped})]
    if not calls and name == "action":
        raise UnreadableJson(f"in <action> stands no action: {stripped[:60]!r}")
    return calls


def _tool(tool: Tool, inside: str, body: str) -> ToolCall:
    """Parse a tag that has a tool's name."""
    properties = tool.parameters.get("properties", {})
    given: dict[str, object] = {
        item[1]: value_of(item[2] if item[2] is not None else item[3], properties.get(item[1]))
        for item in _ATTRIBUTE.finditer(inside)
    }
    stripped = body.strip()
    if stripped[:1] == "{":
        value, end = _decoded(stripped, 0, f"<{tool.name}>")
        if isinstance(value, dict) and not stripped[end:].strip():
            return ToolCall(tool.name, recordable({**given, **value}))
    children = dict(_children(body))
    if any(name in properties for name in children):
        given |= {name: value_of(part, properties.get(name)) for name, part in children.items()}
    elif stripped:
        # text without a tag can only be the value of the one argument
        if len(properties) != 1 or given:
            raise UnreadableJson(f"in <{tool.name}> stands no argument of it: {stripped[:60]!r}")
        (name,) = properties
        given[name] = value_of(body if "\n" in body else stripped, properties[name])
    return ToolCall(tool.name, given)


def _children(body: str) -> Iterator[tuple[str, str]]:
    """Yield the name and content of the tags in a body, in order."""
    closings = ClosingTags(body)
    at = 0
    for _ in range(CHILDREN):
        mark = _CHILD.search(body, at)
        if mark is None:
            break
        at = mark.end()
        end = closings.after(f"</{mark[1]}>", at)
        if end >= 0:
            yield mark[1], body[at:end]
            at = end + len(mark[1]) + 3


def bare(words: str, tools: Mapping[str, Tool]) -> Iterator[ToolCall]:
    """Yield the call of a tool without required arguments if the text is only the tool's name."""
    name = words[:200].strip().strip("`'\"*.! ").removesuffix("()")
    # if the tool requires arguments, its name alone only mentions the tool
    if len(words) <= 200 and name in tools and not tools[name].parameters.get("required"):
        yield ToolCall(name, {})


def word_tool(tools: Mapping[str, Tool]) -> tuple[Tool, str] | None:
    """Return the only tool that takes a single string, with the argument's name, or None if not exactly one tool qualifies."""
    found = []
    for tool in tools.values():
        properties = tool.parameters.get("properties", {})
        if len(properties) == 1 and not tool.text:
            ((name, schema),) = properties.items()
            if isinstance(schema, Mapping) and schema.get("type") == "string":
                found.append((tool, name))
    return found[0] if len(found) == 1 else None
