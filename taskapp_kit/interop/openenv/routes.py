"""OpenEnv's HTTP routes. Unlike OpenEnv's own server, `/reset` and `/step` share an episode, by the id of a session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.routing import BaseRoute

from taskapp_kit.declare.specs import EnvironmentSpec
from taskapp_kit.errors import FieldProblem, RequestError
from taskapp_kit.interop.mcp_path import MCP_PATHS, McpPathRoute
from taskapp_kit.interop.openenv.door import NO_STATE, PROTOCOL, OpenEnvDoor, schemas
from taskapp_kit.interop.openenv.json_rpc import PARSE_ERROR, rpc_answer, rpc_failure
from taskapp_kit.interop.openenv.models import (
    OpenEnvAnswer,
    OpenEnvHealth,
    OpenEnvMetadata,
    OpenEnvReset,
    OpenEnvRpcAnswer,
    OpenEnvSchemas,
    OpenEnvSession,
    OpenEnvState,
    OpenEnvStep,
)
from taskapp_kit.interop.openenv.socket import socket_routes
from taskapp_kit.interop.split_tasks import TASK_VERBS, SplitType, splits_of, task_answer
from taskapp_kit.net.body import read_json
from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.net.response import EncodedResponse, Headers, json_answer
from taskapp_kit.records.content import Json
from taskapp_kit.rollout.session import EnvironmentSession
from taskapp_kit.serve.auth import caller_of
from taskapp_kit.serve.route import Handler, RouteContext, RouteSpec
from taskapp_kit.serve.routes.sessions import FinishSession, parsed
from taskapp_kit.serve.routing import direct_answer, direct_routes

SESSION_HEADER = "X-Session-ID"
SESSION_SENT = {SESSION_HEADER: "The id of the session, for the next requests."}
PARAMETERS = ({"name": "environment", "in": "path", "required": True, "schema": {"type": "string"}},)
SESSION_PARAMETERS: tuple[dict[str, Any], ...] = (
    {"name": SESSION_HEADER, "in": "header", "schema": {"type": "string"}},
    {"name": "session_id", "in": "query", "schema": {"type": "string"}},
)
READING = (404, 408, 413, 415, 422)
PLAYING = (400, *READING, 409, 429, 500, 502, 504)
HEALTH = {"draining": "unhealthy", "store_failing": "degraded"}
API_VERSION = "1.0.0"
"""`info.version` of OpenEnv's own document."""


def openenv_routes(context: RouteContext) -> Sequence[BaseRoute]:
    """Return the routes of all environments, and those of the default one without its name."""
    door = OpenEnvDoor(context)

    def environment_of(request: Request) -> EnvironmentSpec:
        return door.environment(request.path_params.get("environment"))

    async def body_of(request: Request, *, required: bool = False) -> dict[str, Any]:
        return await read_json(request.scope, request.receive, context.settings.max_body_bytes, required=required)

    def session_of(request: Request, body: dict[str, Any] | None = None) -> EnvironmentSession | None:
        """Return the session that a header, the query or the body names, if one does."""
        named = request.headers.get(SESSION_HEADER) or request.query_params.get("session_id")
        given = (body or {}).get("session_id")
        if given is not None and not isinstance(given, str):
            raise RequestError("session_id should be a string.")
        session_id = named or given
        return None if session_id is None else door.find(session_id, environment_of(request), caller_of(request.scope))

    def needed(session: EnvironmentSession | None) -> EnvironmentSession:
        if session is None:
            message = "is missing"
            raise RequestError(
                "The request names no session.",
                fields=(FieldProblem(("body", "session_id"), message),),
                hint=f"Send the session_id of a reset's metadata in {SESSION_HEADER}, or use the socket at /ws.",
            )
        return session

    async def openenv_health(_: RouteContext, request: Request) -> EncodedResponse:
        """Reports whether the server takes sessions."""
        environment_of(request)
        status = context.service.health()["status"]
        return json_answer({"status": HEALTH.get(status, "healthy")})

    async def openenv_metadata(_: RouteContext, request: Request) -> EncodedResponse:
        """Describes the environment."""
        return json_answer(door.metadata(environment_of(request)))

    async def openenv_schema(_: RouteContext, request: Request) -> EncodedResponse:
        """Returns the JSON Schemas of action, observation and state."""
        return json_answer(schemas(environment_of(request)))

    async def openenv_document(_: RouteContext, request: Request) -> EncodedResponse:
        """Returns a short OpenAPI document of this environment's routes, which `openenv validate` reads."""
        environment = environment_of(request)
        paths = {f"/{spec.path}": {spec.method.lower(): {"summary": spec.summary}} for spec in verbs}
        info = {"title": environment.name, "version": API_VERSION}
        return json_answer({"openapi": "3.1.0", "info": info, "paths": paths})

    async def openenv_state(_: RouteContext, request: Request) -> EncodedResponse:
        """Describes the episode of the session, or no episode."""
        environment_of(request)
        session = session_of(request)
        return json_answer(NO_STATE if session is None else door.state(session))

    async def openenv_reset(_: RouteContext, request: Request) -> EncodedResponse:
        """Begins an episode of the session; without one, of a new session, whose id is in metadata and a header."""
        environment = environment_of(request)
        body = await body_of(request)
        session = session_of(request, body)
        body.pop("session_id", None)
        if session is not None:
            return _answered(session, await door.reset(session, body))
        session = await door.open(environment, caller_of(request.scope))
        try:
            return _answered(session, await door.reset(session, body))
        except Exception:
            await session.close()
            raise

    async def openenv_step(_: RouteContext, request: Request) -> EncodedResponse:
        """Does one action in the session's episode."""
        environment_of(request)
        body = await body_of(request, required=True)
        action = body.get("action")
        if not isinstance(action, dict):
            message = "is missing" if "action" not in body else "should be an object"
            raise RequestError(
                f"The request does not fit: action {message}.", fields=(FieldProblem(("body", "action"), message),)
            )
        call = parsed(FinishSession, {name: body[name] for name in ("request_id", "timeout_s") if name in body})
        session = needed(session_of(request, body))
        answer = await door.step(session, action, request_id=call.request_id, seconds=call.timeout_s)
        return _answered(session, answer)

    async def openenv_finish(_: RouteContext, request: Request) -> EncodedResponse:
        """Ends the session's episode now: truncated, scored and stored."""
        environment_of(request)
        session = needed(session_of(request, await body_of(request)))
        return _answered(session, await door.finish(session))

    async def openenv_close(_: RouteContext, request: Request) -> EncodedResponse:
        """Closes the session."""
        environment_of(request)
        session = needed(session_of(request, await body_of(request)))
        await session.close()
        return json_answer(door.state(session))

    async def openenv_mcp(_: RouteContext, request: Request) -> EncodedResponse:
        """Answers OpenEnv's own dialect of JSON-RPC: tools/list, tools/call, and sessions for them."""
        environment = environment_of(request)
        try:
            body = await body_of(request)
        except RequestError:
            return json_answer(rpc_failure(PARSE_ERROR, "The body is not a JSON object."))
        return json_answer(await rpc_answer(door, environment, caller_of(request.scope), body))

    # -- tasks, as openenv 0.10 lists them ---------------------------------------------------------------------------

    def environment_of_tasks(request: Request) -> EnvironmentSpec:
        """Return the environment; a client whose base URL has its name repeats the name behind it."""
        environment = environment_of(request)
        if request.path_params.get("name", environment.name) != environment.name:
            raise RequestRefused(
                "not_found",
                f"The base URL is that of environment {environment.name!r}, which has no other.",
                hint=f"/{PROTOCOL} is the base URL of all environments.",
            )
        return environment

    async def openenv_environments(_: RouteContext, request: Request) -> EncodedResponse:
        """Lists the environments of this base URL, the default one first."""
        if "environment" in request.path_params:
            return json_answer([environment_of(request).name])
        return json_answer(list(context.service.spec.environments))

    async def openenv_splits(_: RouteContext, request: Request) -> EncodedResponse:
        """Lists the splits."""
        return json_answer(splits_of(environment_of_tasks(request)))

    def of_tasks(name: str, words: str) -> Handler:
        async def answer(_: RouteContext, request: Request) -> EncodedResponse:
            environment = environment_of_tasks(request)
            return json_answer(await task_answer(environment, name, await body_of(request)))

        answer.__name__ = f"openenv_{name}"
        answer.__doc__ = f"Returns {words[0].lower()}{words[1:]}."
        return answer

    def about(name: str, answer: Handler, summary: str, model: Any) -> RouteSpec:
        return RouteSpec(name, "GET", answer, summary, response_model=model, failures=(404,))

    def playing(
        name: str, answer: Handler, summary: str, body: type[BaseModel], *, required: bool = False
    ) -> RouteSpec:
        return RouteSpec(
            name, "POST", answer, summary, request_model=body, body_required=required, response_model=OpenEnvAnswer,
            failures=PLAYING, parameters=SESSION_PARAMETERS, headers=SESSION_SENT,
        )  # fmt: skip

    verbs = (
        about("list_environments", openenv_environments, "OpenEnv: the environments", list[str]),
        about("health", openenv_health, "Whether OpenEnv's door is open", OpenEnvHealth),
        about("metadata", openenv_metadata, "OpenEnv: describe the environment", OpenEnvMetadata),
        about("schema", openenv_schema, "OpenEnv: the JSON Schemas", OpenEnvSchemas),
        about("openapi.json", openenv_document, "OpenEnv: the environment's routes", dict[str, Any]),
        replace(
            about("state", openenv_state, "OpenEnv: describe the episode", OpenEnvState),
            failures=(404, 409, 422), parameters=SESSION_PARAMETERS,
        ),
        playing("reset", openenv_reset, "OpenEnv: begin an episode", OpenEnvReset),
        playing("step", openenv_step, "OpenEnv: do one action", OpenEnvStep, required=True),
        playing("finish", openenv_finish, "OpenEnv: end the episode and score it", OpenEnvSession),
        replace(
            playing("close", openenv_close, "OpenEnv: close the session", OpenEnvSession),
            response_model=OpenEnvState, headers={},
        ),
        RouteSpec(
            "mcp", "POST", openenv_mcp, "OpenEnv: call tools by JSON-RPC", response_model=OpenEnvRpcAnswer, failures=READING
        ),
    )  # fmt: skip
    of_splits = (
        RouteSpec("splits", "GET", openenv_splits, "OpenEnv: the splits", response_model=list[SplitType], failures=(404,)),
        *(
            RouteSpec(
                name, "POST", of_tasks(name, words), f"OpenEnv: {words}", request_model=model,
                response_model=answered, failures=(400, *READING),
            )
            for name, (model, answered, words) in TASK_VERBS.items()
        ),
    )  # fmt: skip
    routes: list[BaseRoute] = []
    for prefix, parameters in ((f"/{PROTOCOL}", ()), (f"/{PROTOCOL}/{{environment}}", PARAMETERS)):
        named = "{name}" if parameters else "{environment}"
        paths = [(f"{prefix}/{spec.path}", spec) for spec in verbs]
        paths += [(f"{prefix}/{named}/{spec.path}", spec) for spec in of_splits]
        specs = [replace(spec, path=path, parameters=(*PARAMETERS, *spec.parameters)) for path, spec in paths]
        for route in direct_routes(specs, context):
            # the others are the same
            route.include_in_schema = (
                route.path.startswith(f"/{PROTOCOL}/{{environment}}/") and "{name}" not in route.path
            )
            routes.append(route)
    dialect = RouteSpec("/mcp", "POST", openenv_mcp, "OpenEnv: call tools by JSON-RPC")
    for path in MCP_PATHS:
        routes.append(McpPathRoute(path, direct_answer(dialect, context), streamable=False))
    return [*routes, *socket_routes(door)]


def _answered(session: EnvironmentSession, answer: dict[str, Json]) -> EncodedResponse:
    headers: Headers = [(SESSION_HEADER.lower().encode(), session.session_id.encode())]
    return json_answer(answer, headers=headers)
