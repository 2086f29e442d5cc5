"""A JSON Schema in the words in which a person would say it: `list of 1 to 8 of a | b`."""

from __future__ import annotations

import json
from typing import Any

from taskapp_kit.records.json_schema import Schema, read_schema

MAX_DEPTH = 5
BOUNDS = (("minimum", "≥ "), ("exclusiveMinimum", "> "), ("maximum", "≤ "), ("exclusiveMaximum", "< "))


def members(schema: Any) -> list[tuple[str, str]]:
    """The members of an object schema: (name, words); one that may be left out has its default or a `?`."""
    return _members(read_schema(schema), 0)


def _members(schema: Schema, depth: int) -> list[tuple[str, str]]:
    described = []
    for name, part in schema.members.items():
        words = _words(part, depth)
        if "default" in part.keywords:
            words += f" = {json.dumps(part.keywords['default'], ensure_ascii=False)}"
        elif name not in schema.required:
            name += "?"
        described.append((name, words))
    return described


def _words(schema: Schema, depth: int) -> str:
    """One value's schema in words. What is deeper than MAX_DEPTH is an ellipsis."""
    keywords = schema.keywords
    if depth > MAX_DEPTH:
        return "…"
    if "const" in keywords:
        return json.dumps(keywords["const"], ensure_ascii=False)
    if schema.choices:
        return " | ".join(item if isinstance(item, str) else json.dumps(item) for item in schema.choices)
    if schema.branches:
        return " | ".join(_words(part, depth + 1) for part in schema.branches)
    if schema.kind == "array":
        return _list_words(schema, depth)
    if schema.kind == "object" and schema.members:
        return "{" + ", ".join(f"{name}: {words}" for name, words in _members(schema, depth + 1)) + "}"
    if schema.kind == "string":
        return _text_words(schema)
    if schema.kind in ("integer", "number"):
        bounds = [f"{sign}{keywords[key]:g}" for key, sign in BOUNDS if key in keywords]
        if "minimum" in keywords and "maximum" in keywords and len(bounds) == 2:
            bounds = [f"{keywords['minimum']:g} to {keywords['maximum']:g}"]
        return " ".join([schema.kind, *bounds])
    return schema.kind or "any JSON"


def _list_words(schema: Schema, depth: int) -> str:
    if schema.first_items:
        return "[" + ", ".join(_words(part, depth + 1) for part in schema.first_items) + "]"
    low, high = schema.keywords.get("minItems"), schema.keywords.get("maxItems")
    count = "list of "
    if low is not None and high is not None:
        count += f"{low} of " if low == high else f"{low} to {high} of "
    elif high is not None:
        count += f"at most {high} of "
    elif low is not None:
        count += f"at least {low} of "
    item = _words(schema.items, depth + 1)
    return count + (f"({item})" if " | " in item else item)


def _text_words(schema: Schema) -> str:
    words = "text"
    if "pattern" in schema.keywords:
        words += f" matching {schema.keywords['pattern']}"
    if "maxLength" in schema.keywords:
        words += f" of at most {schema.keywords['maxLength']} characters"
    return words
