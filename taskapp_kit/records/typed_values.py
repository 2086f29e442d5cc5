"""What a person types, as a value of a JSON Schema: on the command line and in the viewer's forms."""

from __future__ import annotations

import json

from taskapp_kit.records.content import Json
from taskapp_kit.records.json_schema import Schema


def typed_argument(text: str, schema: Schema) -> Json:
    """Return all the words as one argument: a list takes them one by one."""
    if schema.kind != "array" or text.startswith("["):
        return typed_value(text, schema)
    return [typed_value(word, schema.items) for word in text.replace(",", " ").split()]


def typed_value(text: str, schema: Schema) -> Json:
    """Return one word as a value: a choice by its spelling, words as words, else JSON; what fits nothing stays a word."""
    parts = [schema] if schema.choices else schema.branches or [schema]
    open_kinds = {part.kind for part in parts if not part.choices}
    if "null" in open_kinds and text in ("null", "none"):
        return None
    for choice in (choice for part in parts for choice in part.choices):
        if str(choice) == text or json.dumps(choice) == text:
            return choice
    if "string" in open_kinds and open_kinds <= {"string", "null"}:
        return text
    try:
        value: Json = json.loads(text)
    except ValueError:
        return text
    return value
