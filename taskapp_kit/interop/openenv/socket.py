"""OpenEnv's WebSockets: `/ws` with OpenEnv's frames, and `/mcp` with JSON-RPC. Each connection is a session.

    {"type": "reset" | "step" | "state" | "finish" | "close" | "mcp", "data": {…}, "request_id": "…"}     to the server
    {"type": "observation" | "state" | "mcp" | "error", "data": {…}, "request_id": "…"}                   the response

Responses are sent in the order of the frames. `finish` and the optional `request_id` are additions of the kit. A
response has the `request_id` of its request. A step that is sent again with the same `request_id`, over another socket
with `?session_id=`, runs only once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import orjson
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from taskapp_kit.declare.specs import EnvironmentSpec
from taskapp_kit.errors import KitError, RequestError, Saturated
from taskapp_kit.interop.mcp_path import MCP_PATHS
from taskapp_kit.interop.openenv.episodes import PROTOCOL, OpenEnvEpisodes
from taskapp_kit.interop.openenv.json_rpc import (
    PARSE_ERROR,
    UNKNOWN_TYPE,
    capacity_data,
    ends_socket,
    error_data,
    rpc_answer,
    rpc_failure,
)
from taskapp_kit.net.auth import POLICY_VIOLATION
from taskapp_kit.records.content import Json, as_object
from taskapp_kit.rollout.session import EnvironmentSession
from taskapp_kit.serve.auth import caller_of
from taskapp_kit.serve.routes.session_socket import GONE, NORMAL, read_frame

MEMBERS = ("type", "data", "request_id")
MAX_REQUEST_ID = 255
TOUCHES = 3
"""How many times during the idle limit the session of a connected client is marked as used."""

Answering = Callable[[EnvironmentSession, dict[str, Any]], Awaitable[dict[str, Json] | None]]
"""Handles a frame. Returns the response, or None if the frame closes the socket."""


def socket_routes(episodes: OpenEnvEpisodes) -> list[WebSocketRoute]:
    """Return the WebSocket routes of every environment: `ws` with OpenEnv's frames, and `mcp` with JSON-RPC."""

    async def rpc(session: EnvironmentSession, frame: dict[str, Any]) -> dict[str, Json]:
        return await rpc_answer(episodes, session.environment, session.caller, frame, session)

    async def ws(websocket: WebSocket) -> None:
        await _serve(episodes, websocket, partial(_typed, episodes), _error_frame)

    async def mcp(websocket: WebSocket) -> None:
        await _serve(episodes, websocket, rpc, lambda error, _: rpc_failure(PARSE_ERROR, str(error)))

    prefixes = (f"/{PROTOCOL}", f"/{PROTOCOL}/{{environment}}")
    routes = [WebSocketRoute(f"{prefix}/ws", ws) for prefix in prefixes]
    # MCP itself does not use WebSockets
    return routes + [WebSocketRoute(path, mcp) for path in (*(f"{prefix}/mcp" for prefix in prefixes), *MCP_PATHS)]


async def _serve(
    episodes: OpenEnvEpisodes,
    websocket: WebSocket,
    answer: Answering,
    failed: Callable[[Exception, dict[str, Any]], dict[str, Json]],
) -> None:
    """Serve a WebSocket. It is accepted before its session is opened, because clients wait only a few seconds."""
    try:
        environment = episodes.environment(websocket.path_params.get("environment"))
    except KitError as error:
        await websocket.close(POLICY_VIOLATION, str(error)[:100])
        return
    await websocket.accept()
    with suppress(*GONE):
        await _drive(episodes, environment, websocket, answer, failed)


async def _drive(
    episodes: OpenEnvEpisodes,
    environment: EnvironmentSpec,
    websocket: WebSocket,
    answer: Answering,
    failed: Callable[[Exception, dict[str, Any]], dict[str, Json]],
) -> None:
    caller = caller_of(websocket.scope)
    attached = websocket.query_params.get("session_id")
    try:
        if attached is None:
            session = await episodes.open(environment, caller)
        else:
            session = episodes.find(attached, environment, caller)
    except Exception as error:
        data = error_data(error, _where("ws"))
        if isinstance(error, Saturated):
            data = capacity_data(error, len(episodes.sessions), _where("ws"))
        await _send(websocket, {"type": "error", "data": data})
        await websocket.close(NORMAL)
        return
    closing: list[asyncio.Task[None]] = []

    def leave(reason: str) -> None:
        async def close() -> None:
            with suppress(*GONE):
                await websocket.close(POLICY_VIOLATION, reason)

        closing.append(asyncio.create_task(close()))

    async def stay() -> None:
        while True:
            await asyncio.sleep(episodes.sessions.idle_seconds / TOUCHES)
            session.touch()

    session.attach(leave)
    staying = asyncio.create_task(stay())
    try:
        while (received := await websocket.receive())["type"] == "websocket.receive":
            frame: dict[str, Any] = {}
            try:
                frame = await read_frame(received, episodes.context.settings.max_body_bytes)
                reply = await answer(session, frame)
            except Exception as error:
                await _send(websocket, failed(error, frame))
                if ends_socket(error):
                    await websocket.close(NORMAL)
                    return
                continue
            if reply is None:
                session.detach(leave)
                await websocket.close(NORMAL)
                return
            await _send(websocket, reply)
    finally:
        staying.cancel()
        session.detach(leave)
        if attached is None:
            await session.close()
        if closing:
            await asyncio.wait(closing)


async def _typed(
    episodes: OpenEnvEpisodes, session: EnvironmentSession, frame: dict[str, Any]
) -> dict[str, Json] | None:
    """Handle a frame of `/ws`. Return the response, or None for `close`."""
    kind, data, request_id = frame.get("type"), frame.get("data", {}), frame.get("request_id")
    if any(name not in MEMBERS for name in frame):
        raise RequestError(f"A frame can only have the fields {', '.join(MEMBERS)}.")
    if request_id is not None and (not isinstance(request_id, str) or not 0 < len(request_id) <= MAX_REQUEST_ID):
        frame["request_id"] = None
        raise RequestError(f"request_id should be a string of 1 to {MAX_REQUEST_ID} characters.")
    if not isinstance(data, dict):
        raise RequestError("A frame's data should be an object.")
    if kind == "reset":
        body = data if request_id is None else {**data, "request_id": request_id}
        return _frame("observation", await episodes.reset(session, body), request_id)
    if kind == "step":
        return _frame("observation", await episodes.step(session, data, request_id=request_id), request_id)
    if kind == "finish":
        return _frame("observation", await episodes.finish(session, request_id=request_id), request_id)
    if kind == "state":
        return _frame("state", episodes.state(session), request_id)
    if kind == "mcp":
        answer = await rpc_answer(episodes, session.environment, session.caller, data, session)
        return _frame("mcp", answer, request_id)
    if kind == "close":
        return None
    message = "The frame's type is not one of close, finish, mcp, reset, state and step."
    return _frame("error", {"message": message, "code": UNKNOWN_TYPE}, request_id)


def _error_frame(error: Exception, frame: Mapping[str, Any]) -> dict[str, Json]:
    request_id = frame.get("request_id")
    return _frame("error", error_data(error, _where("ws")), request_id if isinstance(request_id, str) else None)


def _frame(kind: str, data: dict[str, Json], request_id: str | None) -> dict[str, Json]:
    return {"type": kind, "data": data} | ({} if request_id is None else {"request_id": request_id})


def _where(name: str) -> str:
    return f"/{PROTOCOL}/{{environment}}/{name}"


async def _send(websocket: WebSocket, answer: dict[str, Json]) -> None:
    await websocket.send_text(orjson.dumps(answer, default=as_object).decode())
