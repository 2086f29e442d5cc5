"""Error responses of a task app's server. Validation errors are reworded and never repeat what the client sent."""

from __future__ import annotations

import logging
from typing import Any

import pydantic
from fastapi.exceptions import RequestValidationError

from taskapp_kit.errors import FieldProblem, RequestError
from taskapp_kit.net.error_response import ErrorWriter, short_part
from taskapp_kit.net.response import EncodedResponse

ERRORS = ErrorWriter("The server", logging.getLogger("taskapp_kit.serve"), stored="the rollout", routes="/openapi.json")


def error_answer(error: BaseException, *, where: str = "") -> EncodedResponse:
    """Return the response to any exception, and log what the operator has to know. where: the route, for the log."""
    if isinstance(error, RequestValidationError):
        error = RequestError("The request does not fit.", fields=_problems(error.errors(), None, ()))
    return ERRORS.response(error, where)


def invalid_request(error: pydantic.ValidationError, body: Any) -> RequestError:
    """Return the error of a body that does not fit its model. body: distinguishes field names from union tags."""
    fields = _problems(error.errors(include_url=False, include_input=False), body, ("body",))
    named = ", ".join(".".join(str(short_part(part)) for part in problem.loc[1:]) for problem in fields[:5])
    return RequestError(
        f"The request body does not fit: {named}.",
        fields=fields,
        hint="`fields` says what each one should be; the models are in /openapi.json.",
    )


def _problems(errors: Any, body: Any, prefix: tuple[str | int, ...]) -> tuple[FieldProblem, ...]:
    """Convert pydantic's errors: members of a union are merged, their tags leave the path, inputs are not repeated."""
    merged: dict[tuple[str | int, ...], FieldProblem] = {}
    for item in errors:
        loc = prefix + (_path(item["loc"], body) if prefix else tuple(item["loc"]))
        problem = FieldProblem(loc, _sentence(item), item["type"])
        known = merged.get(loc)
        if known is None:
            merged[loc] = problem
        elif problem.message.removeprefix("should be ") not in known.message:
            alternative = problem.message.removeprefix("should be ")
            merged[loc] = FieldProblem(loc, f"{known.message} or {alternative}", known.type)
    return tuple(merged.values())


def _path(loc: tuple[str | int, ...], body: Any) -> tuple[str | int, ...]:
    """Return the path without the tags of unions, which are not part of the body."""
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
    "string_pattern_mismatch": "should have no control characters",  # the only pattern of the wire
    "too_long": "should have at most {max_length} items",
    "none_required": "should be null",
    "value_error": "{error}",  # of a validator of ours
    "extra_forbidden": "is not a known field",
}


def _sentence(item: Any) -> str:
    words = WORDS.get(item["type"])
    if words is None:
        return f"does not fit ({item['type']})"
    return words.format(**item.get("ctx", {}))
