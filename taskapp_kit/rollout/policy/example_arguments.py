"""Example arguments that satisfy a JSON Schema, shown to a model whose answer could not be used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from taskapp_kit.contract.content import Json
from taskapp_kit.contract.protocols import Tool

DEPTH = 12
"""A recursive schema is followed to this depth."""


def example_call(tool: Tool) -> dict[str, Json]:
    """A valid call of the tool, in the form that output mode `text` expects."""
    return {"tool": tool.name, "arguments": example_arguments(tool)}


def example_text(tool: Tool) -> str:
    """A valid call of the tool as JSON text."""
    return orjson.dumps(example_call(tool), default=dict).decode()


def example_arguments(tool: Tool) -> dict[str, Json]:
    """Arguments that the tool accepts: the required ones, or the first when none is required."""
    schema = tool.parameters
    example = _example(schema, schema.get("$defs", {}), DEPTH)
    if not isinstance(example, dict):
        return {}
    properties: Mapping[str, Any] = schema.get("properties", {})
    if not example and properties:
        name, inner = next(iter(properties.items()))
        example = {name: _example(inner, schema.get("$defs", {}), DEPTH)}
    return example


def _example(schema: Any, definitions: Mapping[str, Any], depth: int) -> Json:
    if not isinstance(schema, Mapping) or depth == 0:
        return None
    if isinstance(schema.get("examples"), list) and schema["examples"]:
        return schema["examples"][0]
    if "default" in schema and schema["default"] is not None:
        return schema["default"]
    if "$ref" in schema:
        return _example(definitions.get(str(schema["$ref"]).rsplit("/", 1)[-1]), definitions, depth - 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for word in ("allOf", "anyOf", "oneOf"):
        for branch in schema.get(word) or ():
            if branch.get("type") != "null":
                return _example(branch, definitions, depth - 1)
    kind = schema.get("type", "object" if "properties" in schema else None)
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    if kind in ("integer", "number"):
        return _number(schema, whole=kind == "integer")
    if kind == "string":
        return _string(schema)
    if kind == "boolean":
        return True
    if kind == "array":
        return _array(schema, definitions, depth)
    if kind == "object":
        wanted = schema.get("required", ())
        properties = schema.get("properties", {})
        return {name: _example(properties.get(name), definitions, depth - 1) for name in wanted}
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
    formats = {"date": "2024-01-31", "date-time": "2024-01-31T12:00:00Z", "time": "12:00:00Z", "email": "a@example.com",
               "uri": "https://example.com", "uuid": "00000000-0000-4000-8000-000000000000"}  # fmt: skip
    words = formats.get(str(schema.get("format")), "...")
    least, most = int(schema.get("minLength", 0)), int(schema.get("maxLength", 1000))
    return (
        (words + "." * min(1000, max(0, least - len(words))))[:most] if schema.get("format") not in formats else words
    )


def _array(schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int) -> list[Json]:
    if schema.get("prefixItems"):
        return [_example(item, definitions, depth - 1) for item in schema["prefixItems"]]
    least = min(8, int(schema.get("minItems", 0)))
    if schema.get("maxItems") == 0:
        return []
    item = _example(schema.get("items"), definitions, depth - 1)
    return [item] * max(least, 1 if item is not None else 0)
