"""The one place that knows HTTP statuses: every error becomes one envelope.

    {"detail": {"error": {"code", "message", "hint", "rollout_id"?, "boundary"?, "error_id"?, "fields"?: [...]}}}

What the caller sends is never echoed, an exception's own text never leaves the log. `error_id` is the opaque id under
which the log has the traceback.
"""

from __future__ import annotations

import logging
import secrets
from typing import Any

import pydantic
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from taskapp_kit.errors import (
    FieldProblem,
    IdempotencyKeyReused,
    RequestError,
    RolloutFailed,
    Saturated,
    StoreError,
    TaskappError,
    Unavailable,
)
from taskapp_kit.serve.response import EncodedResponse, Headers, json_answer

log = logging.getLogger("taskapp_kit.serve")

BOUNDARY_STATUS = {"environment": 500, "policy": 502, "scoring": 500, "timeout": 504, "cancelled": 503}
REFUSAL_STATUS = {
    "unauthorised": 401,
    "missing_environment_api_key": 503,
    "admin_only": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "rollout_elsewhere": 409,
    "body_timeout": 408,
    "body_too_large": 413,
    "unsupported_content_type": 415,
    "unsupported_content_encoding": 415,
}
MAX_FIELDS = 50
MAX_NAME = 64


class RequestRefused(TaskappError):
    """The front entrance itself says no. `code` is one of REFUSAL_STATUS; `headers` go out with the answer."""

    def __init__(self, code: str, message: str, *, hint: str = "", headers: Headers | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.headers = headers or []


def error_answer(error: BaseException, *, where: str = "") -> EncodedResponse:
    """The answer to any exception. Logs what the operator has to know; `where` is the route's template, for the log."""
    if isinstance(error, RequestRefused):
        return envelope(REFUSAL_STATUS[error.code], error.code, error.message, error.hint, headers=error.headers)
    if isinstance(error, RequestError):
        return envelope(422, error.code, error.message, error.hint, fields=error.fields)
    if isinstance(error, IdempotencyKeyReused):
        return envelope(409, "idempotency_key_reused", error.message, error.hint)
    if isinstance(error, Saturated):
        after = [(b"retry-after", b"%d" % error.retry_after_seconds)]
        status = 429 if error.code == "key_quota_reached" else 503
        return envelope(status, error.code, error.message, error.hint, headers=after)
    if isinstance(error, RolloutFailed):
        return _failed(error)
    if isinstance(error, Unavailable):
        return envelope(422, "unavailable", error.message, error.hint)
    if isinstance(error, HTTPException):
        return _framework(error)
    if isinstance(error, RequestValidationError):
        return error_answer(RequestError("The request does not fit.", fields=_problems(error.errors(), None, ())))
    return _internal(error, where)


def envelope(
    status: int,
    code: str,
    message: str,
    hint: str = "",
    *,
    fields: tuple[FieldProblem, ...] = (),
    headers: Headers | None = None,
    **more: str,
) -> EncodedResponse:
    """The one shape of an error. `more` are optional members; empty ones are left out."""
    error: dict[str, Any] = {"code": code, "message": message, "hint": hint}
    error.update({name: value for name, value in more.items() if value})
    if fields:
        error["fields"] = [
            {"loc": [_short(part) for part in problem.loc], "message": problem.message, "type": problem.type}
            for problem in fields[:MAX_FIELDS]
        ]
    return json_answer({"detail": {"error": error}}, status, headers)


def new_error_id() -> str:
    """An opaque id that ties an answer to a log line."""
    return "err_" + secrets.token_hex(6)


def invalid_request(error: pydantic.ValidationError, body: Any) -> RequestError:
    """A body that does not fit its model, in our own words. `body` tells field names from union tags."""
    fields = _problems(error.errors(include_url=False, include_input=False), body, ("body",))
    named = ", ".join(".".join(str(_short(part)) for part in problem.loc[1:]) for problem in fields[:5])
    return RequestError(
        f"The request body does not fit: {named}.",
        fields=fields,
        hint="`fields` says what each one should be; the models are in /openapi.json.",
    )


def _failed(error: RolloutFailed) -> EncodedResponse:
    failure = error.failure
    error_id = failure.error_id or new_error_id()
    if not (error.rollout_id and failure.error_id):  # else `rollout_log.log_ended` told it under this error_id
        log.error(
            "rollout failed rollout_id=%s error_id=%s boundary=%s code=%s",
            error.rollout_id or "-",
            error_id,
            failure.boundary,
            failure.code,
        )
    return envelope(
        BOUNDARY_STATUS[failure.boundary],
        failure.code,
        failure.message,
        failure.hint,
        headers=[(b"retry-after", b"1")] if failure.boundary == "cancelled" else None,
        rollout_id=error.rollout_id,
        boundary=failure.boundary,
        error_id=error_id,
    )


def _internal(error: BaseException, where: str) -> EncodedResponse:
    error_id = new_error_id()
    log.error("internal error error_id=%s route=%s", error_id, where or "-", exc_info=error)
    code, message = "internal_error", "The server failed while answering; the request itself may be fine."
    if isinstance(error, StoreError):
        code, message = "store_failed", "The store could not keep or give back the rollout."
    return envelope(500, code, message, f"The server's log has the cause under {error_id}.", error_id=error_id)


def _framework(error: HTTPException) -> EncodedResponse:
    if error.status_code == 404:
        return envelope(404, "not_found", "There is no such route.", "Routes are listed in /openapi.json.")
    headers: Headers = [(name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()]
    if error.status_code == 405:
        return method_not_allowed([name.strip() for name in (error.headers or {}).get("Allow", "").split(",")])
    words = "The request was refused." if error.status_code < 500 else "The server failed while answering."
    return envelope(error.status_code, f"http_{error.status_code}", words, headers=headers)


def method_not_allowed(allowed: list[str]) -> EncodedResponse:
    """405 with the verbs that the route knows."""
    verbs = ", ".join(sorted(allowed))
    return envelope(
        405,
        "method_not_allowed",
        "The route exists, but not for this verb.",
        f"Use {verbs}.",
        headers=[(b"allow", verbs.encode())],
    )


def _short(part: str | int) -> str | int:
    """A field's name as an answer may carry it: names come from the caller and may be anything."""
    if isinstance(part, int):
        return part
    safe = part.encode("utf-8", "replace").decode()
    return safe if len(safe) <= MAX_NAME else safe[:MAX_NAME] + "…"


def _problems(errors: Any, body: Any, prefix: tuple[str | int, ...]) -> tuple[FieldProblem, ...]:
    """pydantic's errors as ours: members of a union are merged, their tags leave the path, inputs are not repeated."""
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
    "extra_forbidden": "is not a known field",
}


def _sentence(item: Any) -> str:
    words = WORDS.get(item["type"])
    if words is None:
        return f"does not fit ({item['type']})"
    return words.format(**item.get("ctx", {}))
