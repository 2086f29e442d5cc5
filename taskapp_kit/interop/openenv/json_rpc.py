"""The JSON-RPC dialect of OpenEnv's `/mcp`: `tools/list`, `tools/call`, `openenv/session/create` and `…/close`.

This dialect is not MCP. Its clients are agents, so results do not contain rewards or scorecards. An agent cannot
restart an episode: the first call begins the session's only episode, unless a socket at `/ws?session_id=…` has already
begun it.

Errors, also on sockets, contain one of OpenEnv's codes, a message, and the fields of the kit's error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from taskapp_kit.declare.specs import EnvironmentSpec
from taskapp_kit.errors import IdempotencyKeyReused, KitError, RequestError, Saturated, SessionError
from taskapp_kit.interop.openenv.episodes import OpenEnvEpisodes
from taskapp_kit.interop.protocols import tools_of
from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.records.content import Content, Image, Json
from taskapp_kit.rollout.admission import Caller
from taskapp_kit.rollout.response import wire_observation
from taskapp_kit.rollout.session import EnvironmentSession
from taskapp_kit.serve.errors import error_answer

INVALID_JSON, UNKNOWN_TYPE, VALIDATION_ERROR = "INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR"
EXECUTION_ERROR, CAPACITY_REACHED, SESSION_ERROR = "EXECUTION_ERROR", "CAPACITY_REACHED", "SESSION_ERROR"

SESSION_GONE = -32602
"""JSON-RPC's code for invalid parameters, which OpenEnv also uses for an unknown session."""
INTERNAL = -32603
CAPACITY = -32000


def described_error(error: Exception, where: str) -> dict[str, Any]:
    """Return the fields of the kit's error envelope, and log details for the operator.

    where: the route, for the log.
    """
    members: dict[str, Any] = orjson.loads(error_answer(error, where=where).body)["detail"]["error"]
    return members


def error_data(error: Exception, where: str) -> dict[str, Json]:
    """Return the `data` of an error frame.

    Clients only show `message` and `code`, so the message contains the boundary. If a rollout failed, `error` contains
    the code, boundary, error_id and rollout_id.
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
    """Return the `error` of a JSON-RPC response."""
    members = described_error(error, where)
    code = INTERNAL
    if isinstance(error, SessionError | RequestError | RequestRefused):
        code = SESSION_GONE
    elif isinstance(error, Saturated):
        code = CAPACITY
    return {"code": code, "message": _sentence(members), "data": members}


def ends_socket(error: Exception) -> bool:
    """Return whether the socket must be closed after an error, because its session no longer exists."""
    return isinstance(error, SessionError) and error.code == "session_not_found"


def _code(error: Exception) -> str:
    if isinstance(error, RequestError):
        return INVALID_JSON if error.code == "invalid_json" else VALIDATION_ERROR
    if isinstance(error, RequestRefused | IdempotencyKeyReused):
        return VALIDATION_ERROR
    return SESSION_ERROR if ends_socket(error) else EXECUTION_ERROR


def capacity_data(error: KitError, active: int, where: str) -> dict[str, Json]:
    """Return the `data` of the frame that reports that no session is free. active: the number of open sessions."""
    return {**error_data(error, where), "code": CAPACITY_REACHED, "active_sessions": active}


def _sentence(members: dict[str, Any]) -> str:
    boundary = members.get("boundary")
    sentence = str(members["message"])
    return sentence if boundary is None else f"{sentence} [boundary {boundary}, code {members['code']}]"


PARSE_ERROR, INVALID_REQUEST, UNKNOWN_METHOD = -32700, -32600, -32601
MEMBERS = ("jsonrpc", "id", "method", "params")
NO_SUCH_METHOD = "The method is not one of tools/list, tools/call, openenv/session/create and openenv/session/close."
MCP_MEANT = (
    "This is OpenEnv's dialect of JSON-RPC. `--protocols mcp` serves the Model Context Protocol at /mcp, to clients "
    "that accept text/event-stream."
)


def rpc_failure(code: int, message: str, request_id: Json = None) -> dict[str, Json]:
    """Return an error response for an invalid request."""
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}


async def rpc_answer(
    episodes: OpenEnvEpisodes,
    environment: EnvironmentSpec,
    caller: Caller,
    request: Mapping[str, Json],
    session: EnvironmentSession | None = None,
) -> dict[str, Json]:
    """Run a request and return the response. session: the session of the socket, or None over HTTP."""
    request_id, method, params = request.get("id"), request.get("method"), request.get("params", {})
    if not isinstance(request_id, str | int | float | None):
        request_id = None
    if request.get("jsonrpc") != "2.0" or not isinstance(method, str) or any(name not in MEMBERS for name in request):
        return rpc_failure(INVALID_REQUEST, "The body is not a JSON-RPC 2.0 request.", request_id)
    if not isinstance(params, dict):
        return rpc_failure(SESSION_GONE, "params should be an object.", request_id)
    try:
        if method == "tools/list":
            result: dict[str, Json] = {"tools": tools_of(environment, "inputSchema")}
        elif method == "tools/call":
            result = await _call(_session(episodes, environment, caller, params, session), params)
        elif method == "openenv/session/create":
            opened = session or await episodes.open(environment, caller)
            result = {"session_id": opened.session_id}
        elif method == "openenv/session/close":
            closing = _session(episodes, environment, caller, params, None)
            if closing is session:
                return rpc_failure(INVALID_REQUEST, "Close the socket to end the socket's own session.", request_id)
            await closing.close()
            result = {"session_id": closing.session_id, "closed": True}
        else:
            return rpc_failure(UNKNOWN_METHOD, MCP_MEANT if method == "initialize" else NO_SUCH_METHOD, request_id)
    except Exception as error:
        return {"jsonrpc": "2.0", "id": request_id, "error": rpc_error(error, "/openenv/{env}/mcp")}
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def _session(
    episodes: OpenEnvEpisodes,
    environment: EnvironmentSpec,
    caller: Caller,
    params: Mapping[str, Json],
    session: EnvironmentSession | None,
) -> EnvironmentSession:
    session_id = params.get("session_id")
    if session is not None and session_id in (None, session.session_id):
        return session
    if not isinstance(session_id, str):
        raise RequestError(
            "params.session_id is missing or is not a string.",
            hint="Create a session with openenv/session/create. An episode needs a session that stays open between calls.",
        )
    return episodes.find(session_id, environment, caller)


async def _call(session: EnvironmentSession, params: Mapping[str, Json]) -> dict[str, Json]:
    name, args = params.get("name"), params.get("arguments", {})
    if not isinstance(name, str):
        raise RequestError("params.name should be the name of a tool.")
    if session.state == "open":
        await session.reset()
    step = await session.step([(name, args)])
    refused = step.steps[-1].refused if step.steps else None
    observed = wire_observation(step.observation)
    structured = observed if isinstance(step.observation, Mapping) else None
    return {
        "content": _blocks(step.observation, observed),
        "structured_content": structured,
        "data": observed["text"] if observed.keys() == {"text"} else observed,
        "is_error": refused is not None,
        "meta": {"done": step.end is not None},
    }


def _blocks(content: Content, observed: dict[str, Json]) -> list[dict[str, Any]]:
    """Convert an observation to MCP content blocks."""
    if isinstance(content, Mapping) or content is None or isinstance(content, str):
        text = observed["text"] if observed.keys() == {"text"} else orjson.dumps(observed).decode()
        return [{"type": "text", "text": text}]
    return [
        {"type": "image", "data": block.data_url().partition(",")[2], "mimeType": "image/png"}
        if isinstance(block, Image)
        else {"type": "text", "text": block}
        for block in content
    ]
