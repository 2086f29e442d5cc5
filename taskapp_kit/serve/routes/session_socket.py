"""`/sessions/{session_id}/socket` is a WebSocket that controls one session.

The client sends a frame for each call, and the server replies to each frame:

    {"type": "reset" | "step" | "finish" | "state" | "close", "id": …, "data": {…}}     from the client
    {"type": …, "id": …, "data": {…}}                                                   the reply
    {"type": "error", "id": …, "status": …, "error": {"code", "message", "hint", …}}    the reply to a call that failed

`data` is the body of the route with the same name. `id` is a string or a number, which the reply repeats. The server
replies in order. When a socket disconnects, the session stays open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import orjson
from starlette.routing import WebSocketRoute
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from taskapp_kit.errors import RequestError, SessionError
from taskapp_kit.net.auth import POLICY_VIOLATION
from taskapp_kit.net.body import THREAD_BYTES, read_object
from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.records.content import Json, as_object
from taskapp_kit.rollout.session import EnvironmentSession
from taskapp_kit.serve.auth import caller_of
from taskapp_kit.serve.errors import error_answer
from taskapp_kit.serve.route import RouteContext, invalid_field, parsed
from taskapp_kit.serve.routes.sessions import (
    FinishSession,
    ResetSession,
    StepSession,
    finish_with,
    reset_with,
    state_of,
    step_with,
)

PATH = "/sessions/{session_id}/socket"
TYPES = ("reset", "step", "finish", "state", "close")
NORMAL = 1000
GONE = (WebSocketDisconnect, RuntimeError, OSError)
"""The exceptions that sending over a closed socket raises."""


def socket_route(context: RouteContext) -> WebSocketRoute:
    """Return the route of the socket."""

    async def session_socket(websocket: WebSocket) -> None:
        # accepted before the look-up, because a rejected handshake has no body that could contain the reason
        await websocket.accept()
        with suppress(*GONE):
            await _drive(context, websocket)

    return WebSocketRoute(PATH, session_socket)


async def _drive(context: RouteContext, websocket: WebSocket) -> None:
    """Handle frames until the client disconnects, the session is closed, or another socket replaces this socket."""
    try:
        session = context.service.sessions.find(websocket.path_params["session_id"], caller_of(websocket.scope))
    except SessionError as error:
        await _send(websocket, _error(context, error, None))
        await websocket.close(POLICY_VIOLATION, error.code)
        return
    closing: list[asyncio.Task[None]] = []

    def leave(reason: str) -> None:
        async def close() -> None:
            with suppress(*GONE):
                await websocket.close(POLICY_VIOLATION, reason)

        closing.append(asyncio.create_task(close()))

    # a session with a socket does not expire, because a model may take a long time between two steps
    session.attach(leave)
    try:
        while (received := await websocket.receive())["type"] == "websocket.receive":
            answer = await _answer(context, session, received, leave)
            await _send(websocket, answer)
            if session.closed:
                await websocket.close(NORMAL)
                return
    finally:
        session.detach(leave)
        # otherwise an interrupted close would leave the client waiting for the close frame
        if closing:
            await asyncio.wait(closing)


async def _answer(
    context: RouteContext, session: EnvironmentSession, received: Message, leave: Callable[[str], None]
) -> dict[str, Json]:
    frame: dict[str, Any] = {}
    try:
        # for each frame, because the session may be closed or the key revoked at any time
        session = context.service.sessions.find(session.session_id, session.caller)
        frame = await _frame(received, context.settings.max_body_bytes)
        kind, data = frame["type"], frame.get("data", {})
        if kind == "close":
            session.detach(leave)  # the reply is sent before the socket is closed
            await session.close()
        result = await _called(context, session, kind, data)
    except Exception as error:
        return _error(context, error, frame.get("id"))
    context.metrics.answered("SOCKET", PATH, 200)
    return {"type": kind, "id": frame.get("id"), "data": result}


async def _called(context: RouteContext, session: EnvironmentSession, kind: str, data: Any) -> dict[str, Json]:
    if kind == "reset":
        return await reset_with(session, parsed(ResetSession, data))
    if kind == "step":
        return await step_with(session, parsed(StepSession, data))
    if kind == "finish":
        return await finish_with(session, parsed(FinishSession, data))
    return state_of(context, session)


async def read_frame(received: Message, max_bytes: int) -> dict[str, Any]:
    """Return the JSON object in a message.

    Raises:
        RequestError: The message is not a JSON object.
        RequestRefused: The message is too large.
    """
    text = received.get("text")
    if text is None:
        raise RequestError("A frame must be a text frame with a JSON object.", code="invalid_json")
    raw = text.encode()
    if len(raw) > max_bytes:
        raise RequestRefused(
            "body_too_large", f"The frame has more than {max_bytes} bytes.", hint="Send a smaller frame."
        )
    # in a thread, because parsing megabytes would block other sessions
    return await asyncio.to_thread(read_object, raw) if len(raw) > THREAD_BYTES else read_object(raw)


async def _frame(received: Message, max_bytes: int) -> dict[str, Any]:
    """Return a valid frame. Raises RequestError or RequestRefused for other messages."""
    frame = await read_frame(received, max_bytes)
    if frame.get("type") not in TYPES:
        raise invalid_field(("body", "type"), f"The type of a frame must be one of {', '.join(TYPES)}.")
    if not isinstance(frame.get("id"), str | int | float | None):
        # the reply repeats the id, so arbitrarily large objects are not allowed
        frame["id"] = None
        raise invalid_field(("body", "id"), "The id of a frame must be a string or a number.")
    if not isinstance(frame.get("data", {}), dict):
        raise invalid_field(("body", "data"), "The data of a frame must be an object.")
    return frame


def _error(context: RouteContext, error: Exception, frame_id: Json) -> dict[str, Json]:
    answer = error_answer(error, where=PATH)
    context.metrics.answered("SOCKET", PATH, answer.status)
    members = orjson.loads(answer.body)["detail"]["error"]
    return {"type": "error", "id": frame_id, "status": answer.status, "error": members}


async def _send(websocket: WebSocket, answer: dict[str, Json]) -> None:
    await websocket.send_text(orjson.dumps(answer, default=as_object).decode())
