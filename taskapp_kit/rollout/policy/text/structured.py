"""Output mode `structured`: the `response_format` that makes every reply one action in JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from taskapp_kit.records.content import Json
from taskapp_kit.records.protocols import Tool

if TYPE_CHECKING:
    from taskapp_kit.rollout.policy.options import PolicyOptions


def response_format(options: PolicyOptions, tools: Sequence[Tool]) -> dict[str, Json]:
    """Return the format with the caller's schema, or with a union of all actions in `{"action": …}`."""
    name, own = "response", options.structured
    if own is not None:
        name, schema, strict = own.schema_name, own.json_schema, own.strict
    else:
        schema = action_schema(tools)
        # vendors reject a strict schema unless every object in it is closed
        strict = _is_strict(schema)
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": strict}}


def action_schema(tools: Sequence[Tool]) -> dict[str, Json]:
    """Return the JSON Schema of one action. The root is an object, because vendors reject a union at the root."""
    definitions: dict[str, Json] = {}
    branches: list[Json] = []
    for tool in tools:
        names = {name: f"{tool.name}_{name}" for name in tool.parameters.get("$defs", {})}
        for name, inner in tool.parameters.get("$defs", {}).items():
            # two tools may use one name for different definitions
            definitions[names[name]] = _renamed(inner, names)
        arguments = _renamed({key: part for key, part in tool.parameters.items() if key != "$defs"}, names)
        branches.append(_closed({"tool": {"type": "string", "enum": [tool.name]}, "arguments": arguments}))
    schema = _closed({"action": branches[0] if len(branches) == 1 else {"anyOf": branches}})
    return {**schema, "$defs": definitions} if definitions else schema


def _closed(properties: dict[str, Json]) -> dict[str, Json]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _renamed(schema: Any, names: Mapping[str, str]) -> Any:
    """Return the schema with renamed references to definitions."""
    if isinstance(schema, Mapping):
        renamed = {key: _renamed(part, names) for key, part in schema.items()}
        target = schema.get("$ref")
        if isinstance(target, str) and target.startswith("#/$defs/"):
            renamed["$ref"] = f"#/$defs/{names.get(target[8:], target[8:])}"
        return renamed
    if isinstance(schema, list):
        return [_renamed(item, names) for item in schema]
    return schema


def _is_strict(schema: Any) -> bool:
    """Return whether every object in the schema is closed and requires all properties, as vendors' strict mode does."""
    if isinstance(schema, list):
        return all(map(_is_strict, schema))
    if not isinstance(schema, Mapping):
        return True
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        if schema.get("additionalProperties") is not False or set(schema.get("required", ())) != set(properties):
            return False
    inner = [part for key, part in schema.items() if key not in ("properties", "$defs", "enum", "const", "default")]
    named = [part for key in ("properties", "$defs") for part in schema.get(key, {}).values()]
    return all(_is_strict(part) for part in (*inner, *named))
