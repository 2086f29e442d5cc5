"""Streamable HTTP at `/mcp` and `/mcp/{environment}`. Each MCP session is a session of the service, with the same id.

Responses are JSON. `GET` is rejected, which the protocol allows, because the server sends no messages on its own. An
episode needs a session, but revision 2026-07-28 has no sessions over HTTP. For this revision, the response lists the
revisions with sessions, and clients then use the latest of these.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import orjson
from mcp import types
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER, StreamableHTTPServerTransport
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Message, Receive, Scope, Send

from taskapp_kit.errors import FieldProblem, RequestError
from taskapp_kit.interop.mcp.connection import PROTOCOL, EpisodeChoice, McpConnection
from taskapp_kit.interop.mcp.server import mcp_server
from taskapp_kit.interop.mcp_path import MCP_PATHS, McpPathRoute
from taskapp_kit.net.body import read_json
from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.records.content import Json
from taskapp_kit.records.seeds import SEED_LIMIT
from taskapp_kit.rollout.session import EnvironmentSession, no_such_session
from taskapp_kit.serve.auth import caller_of
from taskapp_kit.serve.route import RouteContext

log = logging.getLogger("taskapp_kit.serve")

OPTIONS = ("seed", "split", "role")
"""The URL parameters of the request that opens a session. They may also be headers, such as `X-Taskapp-Seed`."""
POLICY, CONTROL = "policy", "control"


def mcp_routes(context: RouteContext) -> Sequence[BaseRoute]:
    """Return the routes for the default environment and for each environment by name."""
    endpoint = McpEndpoint(context)
    return [McpPathRoute(path, endpoint, streamable=True) for path in MCP_PATHS]


class _HttpSession:
    """An MCP session over HTTP: the SDK's transport, and the connection with the episode."""

    def __init__(self, connection: McpConnection, opened: EnvironmentSession, idle_seconds: float) -> None:
        self.connection = connection
        self.opened = opened
        self.transport = StreamableHTTPServerTransport(
            opened.session_id, is_json_response_enabled=True, idle_timeout=idle_seconds
        )
        self.ready = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        opened.attach(self.end)

    def end(self, _: str) -> None:
        """End the MCP session, because the service's session expired, was revoked or was closed by another route."""
        if self.transport.idle_scope is not None:
            self.transport.idle_scope.cancel()


class McpEndpoint:
    """The ASGI application of the routes."""

    def __init__(self, context: RouteContext) -> None:
        self._context = context
        self._open: dict[str, _HttpSession] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request.

        The kit's exceptions, such as SessionError, become the same responses as on other routes.
        """
        request = Request(scope, receive)
        if request.method not in ("POST", "DELETE"):
            await Response(status_code=405, headers={"allow": "POST, DELETE"})(scope, receive, send)
            return
        session_id = request.headers.get(MCP_SESSION_ID_HEADER)
        if request.method == "DELETE":
            session = self._found(request, session_id or "")
            session.opened.detach(session.end)  # the transport sends the response and then ends
            await session.connection.close()
            await session.transport.handle_request(scope, receive, send)
            return
        body = await read_json(scope, receive, self._context.settings.max_body_bytes)
        version = request.headers.get(MCP_PROTOCOL_VERSION_HEADER)
        if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            await _unsupported(version, body.get("id"))(scope, receive, send)
            return
        replayed = _replayed(orjson.dumps(body), receive)
        if session_id is not None:
            await self._found(request, session_id).transport.handle_request(scope, replayed, send)
        elif body.get("method") == "initialize":
            await self._initialize(request, replayed, send)
        else:
            raise RequestError(
                "The request has no Mcp-Session-Id, which every method except `initialize` requires.",
                hint="Connect with a client of MCP's Streamable HTTP, whose first request is `initialize`. "
                "OpenEnv's own calls need `--protocols openenv`.",
            )

    def _found(self, request: Request, session_id: str) -> _HttpSession:
        """Return the caller's session and mark it as used. Raises SessionError if the caller has no such session."""
        self._context.service.sessions.find(session_id, caller_of(request.scope), protocol=PROTOCOL)
        if session_id not in self._open:  # the id belongs to a session of another protocol
            raise no_such_session(session_id)
        return self._open[session_id]

    async def _initialize(self, request: Request, receive: Receive, send: Send) -> None:
        """Open a session, and close it if the initialization fails."""
        session = await self._opened(request)
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await session.transport.handle_request(request.scope, receive, watched)
        finally:
            if not 200 <= status < 300 and session.task is not None:
                session.task.cancel()

    async def _opened(self, request: Request) -> _HttpSession:
        service = self._context.service
        choice, control = _choice(request)
        caller = caller_of(request.scope)
        if control and not caller.admin:
            raise RequestRefused(
                "admin_only",
                "The role `control` requires a key that may see all rollouts.",
                hint="Omit `role` to connect as a policy, or use the operator's key.",
            )
        environment = request.path_params.get("environment")
        opened = await service.sessions.open(environment, caller=caller, protocol=PROTOCOL, exclusive=not control)
        connection = McpConnection(service.sessions, opened.environment, choice, control=control, session=opened)
        session = _HttpSession(connection, opened, service.sessions.idle_seconds)
        self._open[opened.session_id] = session
        session.task = asyncio.create_task(self._serve(session, opened.session_id))
        await session.ready.wait()
        return session

    async def _serve(self, session: _HttpSession, session_id: str) -> None:
        """Serve a session until the client deletes it, it is idle for too long, or the server stops."""
        server = mcp_server(session.connection, self._context.service.spec.name)
        transport = session.transport
        try:
            async with transport.connect() as (read, write):
                session.ready.set()
                assert transport.idle_scope is not None, "the transport has an idle timeout"
                with transport.idle_scope:
                    await server.run(read, write, server.create_initialization_options())
        except Exception:
            log.exception("an MCP session failed session_id=%s", session_id)
        finally:
            session.ready.set()
            del self._open[session_id]
            await session.connection.close(finish=False)
            await transport.terminate()


def _choice(request: Request) -> tuple[EpisodeChoice, bool]:
    """Return the episode that the request selects, and whether the request has the role `control`.

    Raises RequestError if the seed or the role is invalid.
    """
    chosen = {name: request.query_params.get(name) or request.headers.get(f"x-taskapp-{name}") for name in OPTIONS}
    seed, role = chosen["seed"], chosen["role"] or POLICY
    if seed is not None and not (seed.isascii() and seed.isdigit() and len(seed) < 20 and int(seed) < SEED_LIMIT):
        raise _invalid("seed", f"seed is {seed[:80]!r}; expected an integer from 0 to 2⁶³ − 1.")
    if role not in (POLICY, CONTROL):
        raise _invalid("role", f"role is {role[:80]!r}; expected {POLICY} or {CONTROL}.")
    return EpisodeChoice(None if seed is None else int(seed), chosen["split"]), role == CONTROL


def _invalid(name: str, message: str) -> RequestError:
    return RequestError(message, fields=(FieldProblem(("query", name), message),))


def _unsupported(version: str, request_id: Json) -> Response:
    error = {
        "code": types.UNSUPPORTED_PROTOCOL_VERSION,
        "message": "Unsupported protocol version",
        "data": {"supported": list(HANDSHAKE_PROTOCOL_VERSIONS), "requested": version[:80]},
    }
    body = orjson.dumps({"jsonrpc": "2.0", "id": request_id, "error": error})
    return Response(body, status_code=400, media_type="application/json")


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that first returns the body, which was already read."""
    sent = False

    async def replay() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
