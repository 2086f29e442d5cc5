"""Graders of JSON: equal to an expected value, or valid against a JSON Schema."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from taskapp_kit.grading.answers import read_json
from taskapp_kit.grading.graders import right, wrong
from taskapp_kit.records.json_schema import pointed_at
from taskapp_kit.records.scorecard import Grade


def json_equal(answer: str, expected: Any, *, tolerance: float = 0.0) -> Grade:
    """Grade whether the whole answer is one JSON value that equals the expected value.

    The order of fields and the notation of numbers are ignored: `1`, `1.0` and `1e0` are equal. `true` and `1`, and `"1"`
    and `1`, are different. The JSON may be in a Markdown code block.

    Args:
        answer: The policy's answer.
        expected: The right value: None, a bool, a number, a string, a list or a dict.
        tolerance: The largest accepted absolute difference between two numbers.

    Returns:
        A grade of 1.0 or 0.0. The reason names the location of the first difference, never the expected value.
    """
    try:
        value = read_json(answer)
    except ValueError:
        return wrong("the answer is not one JSON value")
    difference = _difference(value, expected, "the answer", tolerance)
    return wrong(difference) if difference else right("the JSON values are equal")


def _difference(value: Any, expected: Any, location: str, tolerance: float) -> str | None:
    """Return where and how two values differ, or None if they are equal."""
    if _kind(value) != _kind(expected):
        return f"{location} has a different type"
    if isinstance(expected, Mapping):
        if value.keys() != expected.keys():
            return f"{location} has different fields"
        parts = [(value[name], expected[name], f"{location}[{name!r}]") for name in expected]
    elif isinstance(expected, list | tuple):
        if len(value) != len(expected):
            return f"{location} has a different length"
        parts = [(one, other, f"{location}[{i}]") for i, (one, other) in enumerate(zip(value, expected, strict=True))]
    elif _kind(expected) == "number":
        return None if value == expected or _within(value, expected, tolerance) else f"{location} is different"
    else:
        return None if value == expected else f"{location} is different"
    return next((found for part in parts if (found := _difference(*part, tolerance))), None)


def _within(value: float, expected: float, tolerance: float) -> bool:
    """Return whether the difference of two numbers is at most the tolerance."""
    exact, other = _exact(value), _exact(expected)
    return exact is not None and other is not None and abs(exact - other) <= tolerance


def _exact(value: float) -> Fraction | None:
    """Return the exact value of a number in JSON notation, or None for infinity, to which 1e999 is rounded."""
    # an integer of a thousand digits would raise OverflowError as a float
    return (
        Fraction(value if isinstance(value, int) else str(value))
        if isinstance(value, int) or math.isfinite(value)
        else None
    )


def _kind(value: Any) -> str:
    """Return the JSON type of a value. An integer is a number."""
    if isinstance(value, bool):  # before int, of which bool is a subclass
        return "boolean"
    return next((name for name, kind in _KINDS.items() if isinstance(value, kind)), "")


_KINDS: Mapping[str, Any] = {
    "null": type(None),
    "number": int | float,
    "string": str,
    "array": list | tuple,
    "object": Mapping,
}


def json_valid(answer: str, schema: Mapping[str, Any]) -> Grade:
    """Grade whether the whole answer is one JSON value that is valid against a JSON Schema (draft 2020-12).

    Args:
        answer: The policy's answer. The JSON may be in a Markdown code block.
        schema: The schema, such as the result of `Model.model_json_schema()`. `format` is not checked.

    Returns:
        A grade of 1.0 or 0.0. The reason names the location and the keyword that is violated.

    Raises:
        ValueError: The schema contains a keyword that this grader does not check, or a reference outside of the schema.
    """
    _check_keywords(schema)
    try:
        value = read_json(answer)
    except ValueError:
        return wrong("the answer is not one JSON value")
    try:
        problem = _violation(value, schema, schema, "the answer")
    except RecursionError:
        return wrong("the answer is too deeply nested")
    return wrong(problem) if problem else right("the JSON is valid")


_ANNOTATIONS = {
    "$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples", "deprecated", "format",
    "readOnly", "writeOnly", "discriminator",
}  # fmt: skip
_LIMITS: Mapping[str, tuple[str, Callable[[Any], Any], Callable[[Any, Any], bool]]] = {
    "minimum": ("number", lambda value: value, lambda value, limit: value >= limit),
    "maximum": ("number", lambda value: value, lambda value, limit: value <= limit),
    "exclusiveMinimum": ("number", lambda value: value, lambda value, limit: value > limit),
    "exclusiveMaximum": ("number", lambda value: value, lambda value, limit: value < limit),
    "multipleOf": (
        "number",
        _exact,
        lambda value, step: value is not None and value % Fraction(str(step)) == 0,
    ),
    "minLength": ("string", len, lambda length, limit: length >= limit),
    "maxLength": ("string", len, lambda length, limit: length <= limit),
    "pattern": ("string", lambda value: value, lambda value, pattern: re.search(pattern, value) is not None),
    "minItems": ("array", len, lambda length, limit: length >= limit),
    "maxItems": ("array", len, lambda length, limit: length <= limit),
    "uniqueItems": ("array", lambda value: value, lambda value, unique: not unique or _unique(value)),
    "minProperties": ("object", len, lambda length, limit: length >= limit),
    "maxProperties": ("object", len, lambda length, limit: length <= limit),
    "required": ("object", lambda value: value, lambda value, names: all(name in value for name in names)),
}
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SCHEMAS = ("items", "not", "additionalProperties", "propertyNames")
_MAPPINGS = ("properties", "$defs", "definitions")
_CHECKED = {*_ANNOTATIONS, *_LIMITS, *_LISTS, *_SCHEMAS, *_MAPPINGS, "type", "enum", "const", "$ref"}
_MOST_REFERENCES = 200
"""Limit on nested references, which only a schema that refers to itself without end exceeds."""


def _check_keywords(schema: Any) -> None:
    """Raise ValueError if a schema, or a schema inside it, contains a keyword that is not checked."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise ValueError("A JSON Schema must be an object or a boolean.")
    if unknown := schema.keys() - _CHECKED:
        raise ValueError(
            f"json_valid() does not check the keyword {min(unknown)!r}. Remove it, or check it in the rubric."
        )
    inner = [schema[word] for word in _SCHEMAS if word in schema]
    inner += [part for word in _LISTS for part in schema.get(word, ())]
    inner += [part for word in _MAPPINGS for part in schema.get(word, {}).values()]
    for part in inner:
        _check_keywords(part)


def _violation(value: Any, schema: Any, root: Mapping[str, Any], location: str, references: int = 0) -> str | None:
    """Return the location and the keyword that a value violates, or None if the value is valid."""
    return next(_violations(value, schema, root, location, references), None)


def _violations(value: Any, schema: Any, root: Mapping[str, Any], location: str, references: int) -> Iterator[str]:
    def holds(part: Any) -> bool:
        return _violation(value, part, root, location, references) is None

    if isinstance(schema, bool):
        if not schema:
            yield f"{location} is not allowed"
        return
    if "$ref" in schema:
        if references > _MOST_REFERENCES:
            raise ValueError("The JSON Schema refers to itself without end.")
        yield from _violations(value, _referenced(schema["$ref"], root), root, location, references + 1)
    kinds = schema.get("type", [])
    if kinds and not _has_type(value, [kinds] if isinstance(kinds, str) else kinds):
        yield f"{location} violates `type`"
    allowed = [schema["const"]] if "const" in schema else schema.get("enum")
    if allowed is not None and not any(_difference(value, option, "", 0.0) is None for option in allowed):
        yield f"{location} violates `{'const' if 'const' in schema else 'enum'}`"
    for word, (kind, measure, accepts) in _LIMITS.items():
        if word in schema and _kind(value) == kind and not accepts(measure(value), schema[word]):
            yield f"{location} violates `{word}`"
    for part in schema.get("allOf", ()):
        yield from _violations(value, part, root, location, references)
    if "anyOf" in schema and not any(map(holds, schema["anyOf"])):
        yield f"{location} violates `anyOf`"
    if "oneOf" in schema and sum(map(holds, schema["oneOf"])) != 1:
        yield f"{location} violates `oneOf`"
    if "not" in schema and holds(schema["not"]):
        yield f"{location} violates `not`"
    for part, inner, place in _inside(value, schema, location):
        yield from _violations(part, inner, root, place, references)


def _has_type(value: Any, kinds: Sequence[str]) -> bool:
    kind = _kind(value)
    return kind in kinds or (kind == "number" and "integer" in kinds and value % 1 == 0)


def _inside(value: Any, schema: Mapping[str, Any], location: str) -> Iterator[tuple[Any, Any, str]]:
    """Yield each part of a value with its schema and its location."""
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        for name, part in value.items():
            yield part, properties.get(name, schema.get("additionalProperties", True)), f"{location}[{_short(name)}]"
            yield name, schema.get("propertyNames", True), f"the field {_short(name)} of {location}"
    elif isinstance(value, list):
        first = schema.get("prefixItems", [])
        for index, part in enumerate(value):
            yield part, first[index] if index < len(first) else schema.get("items", True), f"{location}[{index}]"


def _short(name: str) -> str:
    """Shorten a field's name for a grade's reason. The policy may choose a name of a million characters."""
    return repr(name[:40])


def _referenced(reference: str, root: Mapping[str, Any]) -> Any:
    """Return the schema at a reference such as `#/$defs/name`. Raises ValueError if the schema does not contain it."""
    target = pointed_at(reference, root) if reference.startswith("#") else None
    if target is None:
        raise ValueError(f"The JSON Schema does not contain the reference {reference!r}.")
    return target


def _unique(values: list[Any]) -> bool:
    return len(set(map(_hashable, values))) == len(values)


def _hashable(value: Any) -> Any:
    """Return a value that is equal for equal JSON values: 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(value, dict):
        return frozenset((name, _hashable(part)) for name, part in value.items())
    return tuple(map(_hashable, value)) if isinstance(value, list) else (_kind(value), value)
