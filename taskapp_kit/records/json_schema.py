"""Reads JSON Schema (draft 2020-12). References, `allOf` and branches are resolved at each location.

`typed_argument` converts a person's input, on the command line and in the viewer's forms, to a value of a schema.

Callers use schemas to draw or describe values, and to create forms and types. One level is read at a time, so a schema
may contain itself. The keywords `not`, `if` and `dependent…` are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from taskapp_kit.records.content import Json

MAX_REFERENCES = 100
"""The maximum number of nested references to a location. A location beyond this limit accepts any JSON."""
FORMATS: Mapping[str, str] = {
    "date": "2024-01-31",
    "date-time": "2024-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "email": "a@example.com",
    "uri": "https://example.com",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
"""An example string for each format."""
_LARGEST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_SMALLEST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_IMPLIED = (
    ("object", ("properties", "required", "additionalProperties", "minProperties")),
    ("array", ("items", "prefixItems", "minItems", "maxItems", "uniqueItems")),
    ("number", ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
    ("string", ("pattern", "format", "minLength", "maxLength")),
)
"""The type that a keyword implies in a schema without a type."""


@dataclass(frozen=True, slots=True)
class Schema:
    """One location in a schema.

    Attributes:
        keywords: The keywords that apply here, including the keywords of references and `allOf`. Empty if any JSON is valid.
        root: The full document, which contains the targets of references.
        followed: The references on the path from the root to this location.
        recursive: The name of a definition that contains this location and is referenced again here.
    """

    keywords: Mapping[str, Any]
    root: Mapping[str, Any]
    followed: tuple[str, ...] = ()
    recursive: str = ""

    def part(self, schema: Any) -> Schema:
        """Return a nested schema of this schema."""
        return read_schema(schema, self.root, self.followed)

    @property
    def choices(self) -> list[Json]:
        """Return the values that `const` or `enum` allows, or an empty list for any other schema."""
        if "const" in self.keywords:
            return [self.keywords["const"]]
        listed = self.keywords.get("enum")
        return listed if isinstance(listed, list) else []

    @property
    def branches(self) -> list[Schema]:
        """Return the alternatives of `anyOf`, `oneOf` or a list of types, or an empty list for any other schema."""
        for word in ("anyOf", "oneOf"):
            if isinstance(parts := self.keywords.get(word), list) and parts:
                rest = _without(self.keywords, word)
                inner = [self.part(part) for part in parts]
                return [replace(part, keywords=_merged(rest, part.keywords)) for part in inner]
        kinds = self.keywords.get("type")
        if isinstance(kinds, list):
            return [replace(self, keywords={**self.keywords, "type": kind}) for kind in kinds]
        return []

    @property
    def kind(self) -> str | None:
        """Return the type, which is stated or implied by the keywords, or None if any JSON is valid."""
        kind = self.keywords.get("type")
        if isinstance(kind, str):
            return kind
        return next((name for name, words in _IMPLIED if any(word in self.keywords for word in words)), None)

    @property
    def items(self) -> Schema:
        """Return the schema of a list's items that follow `first_items`."""
        return self.part(self.keywords.get("items"))

    @property
    def first_items(self) -> list[Schema]:
        """Return the schemas of a list's first items (`prefixItems`), or an empty list if all items have one schema."""
        return [self.part(item) for item in self.keywords.get("prefixItems") or ()]

    @property
    def members(self) -> dict[str, Schema]:
        """Return the schemas of an object's properties, by name."""
        properties = self.keywords.get("properties")
        return {name: self.part(part) for name, part in properties.items()} if isinstance(properties, Mapping) else {}

    @property
    def required(self) -> list[str]:
        """Return the names of an object's required properties."""
        names = self.keywords.get("required")
        return [name for name in names if isinstance(name, str)] if isinstance(names, list | tuple) else []

    def values(self, most: int) -> list[Json]:
        """Return all valid values: the choices, or a range of at most `most` integers. Empty if they cannot be listed."""
        low, high = self.keywords.get("minimum"), self.keywords.get("maximum")
        if self.choices or self.kind != "integer" or "multipleOf" in self.keywords:
            return self.choices
        if not isinstance(low, int) or not isinstance(high, int) or high - low >= most:
            return []
        return list(range(low, high + 1))


def read_schema(schema: Any, root: Any = None, followed: tuple[str, ...] = ()) -> Schema:
    """Return the description of a schema, or of a part of one.

    Args:
        schema: A JSON Schema. Any other value is read as a schema that accepts any JSON.
        root: The document with the definitions. Defaults to `schema`.
        followed: The references on the path to a part.
    """
    keywords = schema if isinstance(schema, Mapping) else {}
    document = root if isinstance(root, Mapping) else keywords
    recursive = ""
    while len(followed) < MAX_REFERENCES:
        reference, parts = keywords.get("$ref"), keywords.get("allOf")
        if isinstance(reference, str):
            recursive = recursive or (reference.rpartition("/")[2] if reference in followed else "")
            followed = (*followed, reference)
            keywords = _merged(referenced(reference, document), _without(keywords, "$ref"))
        elif isinstance(parts, list):
            keywords = _without(keywords, "allOf")
            for part in parts:
                if isinstance(part, Mapping) and part.get("$ref") not in followed:
                    keywords = _merged(keywords, read_schema(part, document, followed).keywords)
        else:
            return Schema(keywords, document, followed, recursive)
    return Schema({}, document, followed, recursive)


def pointed_at(reference: str, root: Mapping[str, Any]) -> Any:
    """Return the target of a reference such as `#/$defs/name` in the document, or None if it does not exist."""
    target: Any = root
    for name in reference.removeprefix("#").split("/")[1:]:
        target = target.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
    return target


def referenced(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema at a reference, or an empty mapping if the document has no such object."""
    target = pointed_at(reference, root)
    return target if isinstance(target, Mapping) else {}


def _without(keywords: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in keywords.items() if key != name}


def _merged(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, Any]:
    """Combine the keywords of two schemas.

    If two values of a keyword cannot be combined, the second schema's value is used.
    """
    merged = {**one, **two}
    for key in one.keys() & two.keys():
        if key in _LARGEST:
            merged[key] = max(one[key], two[key])
        elif key in _SMALLEST:
            merged[key] = min(one[key], two[key])
        elif key == "properties":
            shared = {name: {"allOf": [one[key][name], two[key][name]]} for name in one[key].keys() & two[key].keys()}
            merged[key] = {**one[key], **two[key], **shared}
        elif key == "required":
            merged[key] = list(dict.fromkeys([*one[key], *two[key]]))
        elif key == "enum":
            merged[key] = [item for item in one[key] if item in two[key]] or two[key]
    return merged


def typed_argument(text: str, schema: Schema) -> Json:
    """Convert the full text to an argument. For a list, each word is one item."""
    if schema.kind != "array" or text.startswith("["):
        return typed_value(text, schema)
    return [typed_value(word, schema.items) for word in text.replace(",", " ").split()]


def typed_value(text: str, schema: Schema) -> Json:
    """Convert a word to a value of the schema: a choice with this spelling, a string, or JSON.

    Text that is not valid for the schema is returned as a string.
    """
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
