"""What the backend answers: JSON, and every error in one envelope, the same as a task app's.

    {"detail": {"error": {"code", "message", "hint", "fields"?: [{"loc", "message", "type"}], "error_id"?}}}

Of what the caller sent, a refusal quotes at most a wrong value of a config, and none that looks like a key. An exception's
own text stays in the log, under `error_id`.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.responses import Response

from taskapp_kit.errors import (
    FieldProblem,
    IdempotencyKeyReused,
    JobConfigError,
    RequestError,
    Saturated,
    StoreError,
    TaskappError,
    Unavailable,
)

log = logging.getLogger("taskapp_kit.backend")

HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
MAX_FIELDS = 100
STATUS = {
    "unauthorised": 401,
    "not_found": 404,
    "job_not_found": 404,
    "trainer_not_found": 404,
    "body_timeout": 408,
    "body_too_large": 413,
    "unsupported_content_encoding": 415,
    "unsupported_content_type": 415,
    "no_models": 501,
}


class BackendRequestRefused(TaskappError):
    """The backend says no. `code` is one of STATUS."""

    def __init__(self, code: str, message: str, *, hint: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.headers = dict(headers or {})


def json_answer(payload: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`payload` as JSON."""
    return Response(
        orjson.dumps(payload), status_code=status, headers={**HEADERS, **(headers or {})}, media_type="application/json"
    )


def error_answer(error: BaseException) -> Response:
    """The answer to any exception; logs what the operator has to know."""
    if isinstance(error, BackendRequestRefused):
        return _envelope(STATUS[error.code], error.code, error.message, error.hint, headers=error.headers)
    if isinstance(error, JobConfigError):
        fields = tuple(FieldProblem(("body", "data", "config"), problem) for problem in error.problems)
        return _envelope(422, "invalid_config", str(error.message), error.hint, fields=fields)
    if isinstance(error, RequestError):
        return _envelope(422, error.code, error.message, error.hint, fields=error.fields)
    if isinstance(error, IdempotencyKeyReused):
        return _envelope(409, "idempotency_key_reused", error.message, error.hint)
    if isinstance(error, Saturated):
        after = {"retry-after": str(error.retry_after_seconds)}
        return _envelope(503, error.code, error.message, error.hint, headers=after)
    if isinstance(error, Unavailable):
        return _envelope(501, "unavailable", error.message, error.hint)
    if isinstance(error, HTTPException):
        if error.status_code == 404:
            return _envelope(404, "not_found", "There is no such route.", "The routes are listed in docs/backend.md.")
        words = "The route exists, but not for this verb." if error.status_code == 405 else "The request was refused."
        return _envelope(error.status_code, f"http_{error.status_code}", words, headers=dict(error.headers or {}))
    error_id = "err_" + secrets.token_hex(6)
    log.error("internal error error_id=%s", error_id, exc_info=error)
    code, message = "internal_error", "The backend failed while answering; the request itself may be fine."
    if isinstance(error, StoreError):
        code, message = "store_failed", "The backend's store could not keep or give back a job."
    return _envelope(500, code, message, f"The backend's log has the cause under {error_id}.", error_id=error_id)


def _envelope(
    status: int,
    code: str,
    message: str,
    hint: str = "",
    *,
    fields: tuple[FieldProblem, ...] = (),
    headers: Mapping[str, str] | None = None,
    **more: str,
) -> Response:
    error: dict[str, Any] = {"code": code, "message": message, "hint": hint, **more}
    if fields:
        error["fields"] = [
            {"loc": list(problem.loc), "message": problem.message, "type": problem.type}
            for problem in fields[:MAX_FIELDS]
        ]
    return json_answer({"detail": {"error": error}}, status, headers)
