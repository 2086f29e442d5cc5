"""Example arguments that satisfy a JSON Schema, shown to a model whose answer could not be used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from taskapp_kit.records.content import Json
from taskapp_kit.records.json_schema import FORMATS, Schema, read_schema
from taskapp_kit.records.protocols import Tool

DEPTH = 12
"""A recursive schema is followed to this depth, references counted."""


def example_call(tool: Tool) -> dict[str, Json]:
    """A valid call of the tool, in the form that output mode `text` expects."""
    return {"tool": tool.name, "arguments": example_arguments(tool)}


def example_text(tool: Tool) -> str:
    """A valid call of the tool as JSON text."""
    return orjson.dumps(example_call(tool), default=dict).decode()


def example_arguments(tool: Tool) -> dict[str, Json]:
    """Arguments that the tool accepts: the required ones, or the first when none is required."""
    schema = read_schema(tool.parameters)
    example = _example(schema, 0)
    if not isinstance(example, dict):
        return {}
    if not example and schema.members:
        name, part = next(iter(schema.members.items()))
        example = {name: _example(part, 0)}
    return example


def _example(schema: Schema, depth: int) -> Json:
    keywords = schema.keywords
    if depth + len(schema.followed) >= DEPTH:
        return None
    if isinstance(keywords.get("examples"), list) and keywords["examples"]:
        return keywords["examples"][0]
    if keywords.get("default") is not None:
        return keywords["default"]
    if "const" in keywords or schema.choices:
        return schema.choices[0]
    for branch in schema.branches:
        if branch.kind != "null":
            return _example(branch, depth + 1)
    match schema.kind:
        case "integer" | "number":
            return _number(keywords, whole=schema.kind == "integer")
        case "string":
            return _string(keywords)
        case "boolean":
            return True
        case "array":
            return _array(schema, depth)
        case "object":
            members = schema.members
            return {name: _example(members[name], depth + 1) if name in members else None for name in schema.required}
        case _:
            return None


def _number(schema: Mapping[str, Any], *, whole: bool) -> int | float:
    """The number within the bounds that is nearest to 1."""
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    step = schema.get("multipleOf") or (1 if whole else 0)
    least = low if low is not None else above + (step or 1e-3 * max(1.0, abs(above))) if above is not None else None
    most = high if high is not None else below - (step or 1e-3 * max(1.0, abs(below))) if below is not None else None
    if above is not None and below is not None and not step:
        return float((above + below) / 2)
    value: float = step or 1
    if least is not None and value < least:
        value = -(-least // step) * step if step else least
    if most is not None and value > most:
        value = most // step * step if step else most
    return int(value) if whole else value


def _string(schema: Mapping[str, Any]) -> str:
    if schema.get("format") in FORMATS:
        return FORMATS[schema["format"]]
    least, most = int(schema.get("minLength", 0)), int(schema.get("maxLength", 1000))
    return ("..." + "." * min(1000, max(0, least - 3)))[:most]


def _array(schema: Schema, depth: int) -> list[Json]:
    if schema.first_items:
        return [_example(item, depth + 1) for item in schema.first_items]
    if schema.keywords.get("maxItems") == 0:
        return []
    item = _example(schema.items, depth + 1) if "items" in schema.keywords else None
    least = min(8, int(schema.keywords.get("minItems", 0)))
    return [item] * max(least, 1 if item is not None else 0)
