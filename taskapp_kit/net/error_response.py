"""Writes the error envelope of every server. Only this module maps errors to HTTP statuses.

    {"detail": {"error": {"code", "message", "hint", "rollout_id"?, "boundary"?, "error_id"?, "fields"?: [...]}}}

Only the log contains exception messages. `error_id` is the opaque id that marks the traceback in the log.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.exceptions import HTTPException

from taskapp_kit.errors import (
    FieldProblem,
    IdempotencyKeyReused,
    JobConfigError,
    KitError,
    RequestError,
    RolloutFailed,
    Saturated,
    SessionError,
    StoreError,
    Unavailable,
)
from taskapp_kit.net.response import EncodedResponse, Headers, json_answer
from taskapp_kit.records.content import without_surrogates
from taskapp_kit.wire.chat import messages_api

BOUNDARY_STATUS = {"environment": 500, "policy": 502, "scoring": 500, "timeout": 504, "cancelled": 503}
REFUSAL_STATUS = {
    "unknown_split": 400,
    "index_out_of_range": 400,
    "too_many_tasks": 400,
    "session_header_missing": 400,
    "session_exists": 400,
    "unauthorised": 401,
    "missing_environment_api_key": 503,
    "session_starting": 503,
    "admin_only": 403,
    "origin_not_allowed": 403,
    "not_found": 404,
    "job_not_found": 404,
    "group_scoring_unsupported": 404,
    "trainer_not_found": 404,
    "model_not_found": 404,
    "method_not_allowed": 405,
    "body_timeout": 408,
    "rollout_elsewhere": 409,
    "session_deleted": 410,
    "attempt_ended": 410,
    "attempt_spent": 410,
    "body_too_large": 413,
    "unsupported_content_type": 415,
    "unsupported_content_encoding": 415,
    "host_not_allowed": 421,
    "too_many_tries": 429,
    "client_gone": 499,
    "token_mismatch": 500,
    "no_models": 501,
    "model_failed": 502,
    "generation_timeout": 504,
}
MAX_NAME = 64
"""The maximum length of one part of a field's location, in characters."""


class RequestRefused(KitError):
    """The server rejects a request. `code` is one of REFUSAL_STATUS; `headers` are sent with the response."""

    def __init__(self, code: str, message: str, *, hint: str = "", headers: Headers | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.headers = headers or []


class ClientGone(RequestRefused):
    """The client closed the connection, so no response is sent."""

    def __init__(self) -> None:
        super().__init__("client_gone", "The client closed the connection.")


@dataclass(frozen=True, slots=True)
class ErrorWriter:
    """Writes the errors of one server.

    Attributes:
        server: The server's name, as the subject of messages.
        log: The logger for unexpected errors.
        stored: What the server's store contains, for messages.
        routes: Where the server's routes are listed, for messages.
        unavailable_status: The HTTP status for `Unavailable`.
        framework_codes: The error codes for the statuses of errors that the web framework raises.
        max_fields: The maximum number of fields in an error.
        shape: A function that returns the body, given the status and the error's fields. If None, the body is the kit's
            envelope.
    """

    server: str
    log: logging.Logger
    stored: str
    routes: str
    unavailable_status: int = 422
    framework_codes: dict[int, str] = field(default_factory=lambda: {404: "not_found", 405: "method_not_allowed"})
    max_fields: int = 50
    shape: Callable[[int, dict[str, Any]], dict[str, Any]] | None = None

    def for_model_route(self, path: str) -> ErrorWriter:
        """Return a writer of errors in the format that clients of a model route, such as `/v1/messages`, expect."""
        # the SDKs of these APIs only show errors in the format of their vendors' servers
        return replace(self, shape=messages_api.error_body if path.endswith("/messages") else openai_error)

    def response(self, error: BaseException, where: str = "") -> EncodedResponse:
        """Return the response for an exception, and log details for the operator. where: the route, for the log."""
        if isinstance(error, RequestRefused):
            status = REFUSAL_STATUS[error.code]
            return self.envelope(status, error.code, error.message, error.hint, headers=error.headers)
        # a config is checked completely, so all problems are reported together
        if isinstance(error, JobConfigError):
            problems = zip(error.places, error.problems, strict=True)
            fields = tuple(FieldProblem(("body", "data", "config", *place), text) for place, text in problems)
            return self.envelope(422, "invalid_config", error.message, error.hint, fields=fields)
        if isinstance(error, RequestError):
            return self.envelope(422, error.code, error.message, error.hint, fields=error.fields)
        if isinstance(error, SessionError):
            status = 404 if error.code == "session_not_found" else 409
            return self.envelope(status, error.code, error.message, error.hint)
        if isinstance(error, IdempotencyKeyReused):
            return self.envelope(409, "idempotency_key_reused", error.message, error.hint)
        if isinstance(error, Saturated):
            after = [(b"retry-after", b"%d" % error.retry_after_seconds)]
            # 429: this caller sends too much; 503: other callers use the server's capacity
            status = 429 if error.code == "key_quota_reached" else 503
            return self.envelope(status, error.code, error.message, error.hint, headers=after)
        if isinstance(error, RolloutFailed):
            return self._failed(error)
        if isinstance(error, Unavailable):
            return self.envelope(self.unavailable_status, "unavailable", error.message, error.hint)
        if isinstance(error, HTTPException):
            return self._framework(error)
        return self._internal(error, where)

    def envelope(
        self,
        status: int,
        code: str,
        message: str,
        hint: str = "",
        *,
        fields: tuple[FieldProblem, ...] = (),
        headers: Headers | None = None,
        **more: str,
    ) -> EncodedResponse:
        """Return a response with an error. more: optional fields; empty fields are omitted."""
        error: dict[str, Any] = {"code": code, "message": message, "hint": hint}
        error.update({name: value for name, value in more.items() if value})
        if fields:
            # limited, because 200 000 invalid operations would make the response megabytes long
            error["fields"] = [
                {"loc": [short_part(part) for part in problem.loc], "message": problem.message, "type": problem.type}
                for problem in fields[: self.max_fields]
            ]
        body = {"detail": {"error": error}} if self.shape is None else self.shape(status, error)
        return json_answer(body, status, headers)

    def method_not_allowed(self, allowed: list[str]) -> EncodedResponse:
        """Return a 405 response that names the methods of the route."""
        methods = ", ".join(sorted(allowed))
        return self.envelope(
            405,
            self.framework_codes.get(405, "http_405"),
            "The route does not support this method.",
            f"Use {methods}.",
            headers=[(b"allow", methods.encode())],
        )

    def _failed(self, error: RolloutFailed) -> EncodedResponse:
        failure = error.failure
        error_id = failure.error_id or new_error_id()
        if not (error.rollout_id and failure.error_id):  # otherwise `serve.app.log_ended` has logged it
            self.log.error(
                "rollout failed rollout_id=%s error_id=%s boundary=%s code=%s",
                error.rollout_id or "-",
                error_id,
                failure.boundary,
                failure.code,
            )
        return self.envelope(
            BOUNDARY_STATUS[failure.boundary],
            failure.code,
            failure.message,
            failure.hint,
            # a server that shuts down cancels its rollouts; a retry may reach another server
            headers=[(b"retry-after", b"1")] if failure.boundary == "cancelled" else None,
            rollout_id=error.rollout_id,
            boundary=failure.boundary,
            error_id=error_id,
        )

    def _framework(self, error: HTTPException) -> EncodedResponse:
        status, given = error.status_code, error.headers or {}
        if status == 405:
            return self.method_not_allowed([name.strip() for name in given.get("Allow", "").split(",")])
        code = self.framework_codes.get(status, f"http_{status}")
        if status == 404:
            return self.envelope(404, code, "The route does not exist.", f"Routes are listed in {self.routes}.")
        words = "The request was rejected." if status < 500 else f"{self.server} failed while handling the request."
        headers: Headers = [(name.lower().encode(), value.encode()) for name, value in given.items()]
        return self.envelope(status, code, words, headers=headers)

    def _internal(self, error: BaseException, where: str) -> EncodedResponse:
        error_id = new_error_id()
        self.log.error("internal error error_id=%s route=%s", error_id, where or "-", exc_info=error)
        code, message = "internal_error", f"{self.server} failed. The request itself may be valid."
        if isinstance(error, StoreError):
            code, message = "store_failed", f"The store could not save or read {self.stored}."
        return self.envelope(500, code, message, f"Search the server's log for {error_id}.", error_id=error_id)


def openai_error(status: int, error: dict[str, Any]) -> dict[str, Any]:
    """Return an error in the format of OpenAI's APIs, as the `shape` of an ErrorWriter."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"type": kind, "param": None, **error}}


def new_error_id() -> str:
    """Return a new opaque id, which connects an error response to its log line."""
    return "err_" + secrets.token_hex(6)


def short_part(part: str | int) -> str | int:
    """Return a part of a field's location, shortened for a response. Clients may send names of any length."""
    if isinstance(part, int):
        return part
    safe = without_surrogates(part)
    return safe if len(safe) <= MAX_NAME else safe[:MAX_NAME] + "…"
