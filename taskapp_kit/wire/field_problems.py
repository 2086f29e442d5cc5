"""Converts pydantic's errors to field problems, which never repeat a client's input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from taskapp_kit.errors import FieldProblem, RequestError

if TYPE_CHECKING:
    import pydantic


def invalid_member(body: str, member: str, message: str, *path: str, hint: str = "") -> RequestError:
    """Return the error for an invalid field of a body. path: the names of the fields that contain it."""
    fields = (FieldProblem(("body", *path, member), message),)
    return RequestError(f"The {body} is invalid: {member} {message}.", fields=fields, hint=hint)


def body_problems(error: pydantic.ValidationError, body: Any) -> tuple[FieldProblem, ...]:
    """Convert pydantic's error for a request body to field problems.

    body: the invalid body. Parts of an error's location that are not in the body are union tags, and are omitted.
    """
    errors = error.errors(include_url=False, include_input=False)
    return problems_of([{**item, "loc": ("body", *_path(item["loc"], body))} for item in errors])


def problems_of(errors: Iterable[Mapping[str, Any]]) -> tuple[FieldProblem, ...]:
    """Convert pydantic's errors to field problems. The errors of a union's alternatives become one problem."""
    merged: dict[tuple[str | int, ...], FieldProblem] = {}
    for item in errors:
        loc = tuple(item["loc"])
        problem = FieldProblem(loc, _sentence(item), item["type"])
        known = merged.get(loc)
        if known is None:
            merged[loc] = problem
        elif problem.message.removeprefix("should be ") not in known.message:
            alternative = problem.message.removeprefix("should be ")
            merged[loc] = FieldProblem(loc, f"{known.message} or {alternative}", known.type)
    return tuple(merged.values())


def _path(loc: tuple[str | int, ...], body: Any) -> tuple[str | int, ...]:
    """Return the path without union tags, which are not part of the body."""
    path: list[str | int] = []
    value = body
    for index, part in enumerate(loc):
        if isinstance(value, dict) and (part in value or index == len(loc) - 1):
            path.append(part)
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            path.append(part)
            value = value[part]
    return tuple(path)


WORDS = {
    "missing": "is missing",
    "string_type": "should be a string",
    "int_type": "should be an integer",
    "int_from_float": "should be an integer",
    "bool_type": "should be true or false",
    "float_type": "should be a number",
    "float_parsing": "should be a number",
    "dict_type": "should be an object",
    "list_type": "should be a list",
    "model_type": "should be an object",
    "model_attributes_type": "should be an object",
    "finite_number": "should be a finite number",
    "literal_error": "should be {expected}",
    "greater_than": "should be greater than {gt}",
    "greater_than_equal": "should be at least {ge}",
    "less_than": "should be less than {lt}",
    "less_than_equal": "should be at most {le}",
    "string_too_short": "should have at least {min_length} character(s)",
    "string_too_long": "should have at most {max_length} characters",
    "string_pattern_mismatch": "should have no control characters",  # the only pattern in a request
    "too_short": "should have at least {min_length} item(s)",
    "too_long": "should have at most {max_length} items",
    "none_required": "should be null",
    "value_error": "{error}",  # raised by one of the kit's validators
    "extra_forbidden": "is not a known field",
}


def _sentence(item: Any) -> str:
    words = WORDS.get(item["type"])
    if words is None:
        return f"is invalid ({item['type']})"
    return words.format(**item.get("ctx", {}))
