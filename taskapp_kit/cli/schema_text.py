"""A JSON Schema in the words in which a person would say it: `list of 1 to 8 of a | b`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

BOUNDS = (("minimum", "≥ "), ("exclusiveMinimum", "> "), ("maximum", "≤ "), ("exclusiveMaximum", "< "))


def members(schema: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The members of an object schema: (name, words); one that may be left out has its default or a `?`."""
    definitions = schema.get("$defs", {})
    required = schema.get("required", ())
    found = []
    for name, part in schema.get("properties", {}).items():
        words = schema_words(part, definitions)
        if "default" in part:
            words += f" = {json.dumps(part['default'], ensure_ascii=False)}"
        elif name not in required:
            name += "?"
        found.append((name, words))
    return found


def schema_words(schema: Any, definitions: Mapping[str, Any], depth: int = 0) -> str:
    """One value's schema in words. What is deeper than five levels is an ellipsis."""
    if not isinstance(schema, Mapping) or depth > 5:
        return "…"
    if "$ref" in schema:
        return schema_words(definitions.get(str(schema["$ref"]).rsplit("/", 1)[-1], {}), definitions, depth + 1)
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    if "enum" in schema:
        return " | ".join(item if isinstance(item, str) else json.dumps(item) for item in schema["enum"])
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return " | ".join(schema_words(part, definitions, depth + 1) for part in schema[word])
    kind = schema.get("type")
    if kind == "array":
        return _list_words(schema, definitions, depth)
    if kind == "object" and schema.get("properties"):
        inner = {**schema, "$defs": definitions}
        return "{" + ", ".join(f"{name}: {words}" for name, words in members(inner)) + "}"
    if kind == "string":
        return _text_words(schema)
    if kind in ("integer", "number"):
        bounds = [f"{sign}{schema[key]:g}" for key, sign in BOUNDS if key in schema]
        if "minimum" in schema and "maximum" in schema and len(bounds) == 2:
            bounds = [f"{schema['minimum']:g} to {schema['maximum']:g}"]
        return " ".join([kind, *bounds])
    return str(kind or "any JSON")


def _list_words(schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int) -> str:
    if "prefixItems" in schema:
        parts = [schema_words(part, definitions, depth + 1) for part in schema["prefixItems"]]
        return "[" + ", ".join(parts) + "]"
    low, high = schema.get("minItems"), schema.get("maxItems")
    count = "list of "
    if low is not None and high is not None:
        count += f"{low} of " if low == high else f"{low} to {high} of "
    elif high is not None:
        count += f"at most {high} of "
    elif low is not None:
        count += f"at least {low} of "
    item = schema_words(schema.get("items", {}), definitions, depth + 1)
    return count + (f"({item})" if " | " in item else item)


def _text_words(schema: Mapping[str, Any]) -> str:
    words = "text"
    if "pattern" in schema:
        words += f" matching {schema['pattern']}"
    if "maxLength" in schema:
        words += f" of at most {schema['maxLength']} characters"
    return words
