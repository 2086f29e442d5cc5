"""Errors in OpenEnv's words: one of its codes, a sentence, and beside them the members of the kit's own error."""

from __future__ import annotations

from typing import Any

import orjson

from taskapp_kit.errors import IdempotencyKeyReused, KitError, RequestError, Saturated, SessionError
from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.records.content import Json
from taskapp_kit.serve.errors import error_answer

INVALID_JSON, UNKNOWN_TYPE, VALIDATION_ERROR = "INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR"
EXECUTION_ERROR, CAPACITY_REACHED, SESSION_ERROR = "EXECUTION_ERROR", "CAPACITY_REACHED", "SESSION_ERROR"

SESSION_GONE = -32602
"""JSON-RPC's code of invalid parameters, which OpenEnv uses for a session that does not exist, too."""
INTERNAL = -32603
CAPACITY = -32000


def described_error(error: Exception, where: str) -> dict[str, Any]:
    """Return the members of the kit's error, and log what the operator has to know. where: the route, for the log."""
    members: dict[str, Any] = orjson.loads(error_answer(error, where=where).body)["detail"]["error"]
    return members


def error_data(error: Exception, where: str) -> dict[str, Json]:
    """Return the `data` of an error frame. Clients raise its `message` with its `code`, so the sentence names the boundary.

    Of a failure, `error` has code, boundary, error_id and rollout_id.
    """
    members = described_error(error, where)
    data: dict[str, Json] = {"message": _sentence(members), "code": _code(error), "error": members}
    if data["code"] == VALIDATION_ERROR:
        data["errors"] = [
            {"loc": field["loc"][1:], "msg": field["message"], "type": field["type"]}
            for field in members.get("fields", ())
        ]
    return data


def rpc_error(error: Exception, where: str) -> dict[str, Json]:
    """Return the `error` of a JSON-RPC answer."""
    members = described_error(error, where)
    code = INTERNAL
    if isinstance(error, SessionError | RequestError | RequestRefused):
        code = SESSION_GONE
    elif isinstance(error, Saturated):
        code = CAPACITY
    return {"code": code, "message": _sentence(members), "data": members}


def ends_socket(error: Exception) -> bool:
    """Whether a socket cannot go on after this error: its session has gone."""
    return isinstance(error, SessionError) and error.code == "session_not_found"


def _code(error: Exception) -> str:
    if isinstance(error, RequestError):
        return INVALID_JSON if error.code == "invalid_json" else VALIDATION_ERROR
    if isinstance(error, RequestRefused | IdempotencyKeyReused):
        return VALIDATION_ERROR
    return SESSION_ERROR if ends_socket(error) else EXECUTION_ERROR


def capacity_data(error: KitError, active: int, where: str) -> dict[str, Json]:
    """Return the `data` of the frame that refuses a session."""
    return {**error_data(error, where), "code": CAPACITY_REACHED, "active_sessions": active}


def _sentence(members: dict[str, Any]) -> str:
    boundary = members.get("boundary")
    sentence = str(members["message"])
    return sentence if boundary is None else f"{sentence} [boundary {boundary}, code {members['code']}]"
