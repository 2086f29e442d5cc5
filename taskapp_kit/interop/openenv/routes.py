"""OpenEnv's HTTP routes. Unlike in OpenEnv's own server, a session id lets `/reset` and `/step` share an episode."""

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
from taskapp_kit.interop.openenv.episodes import NO_STATE, PROTOCOL, OpenEnvEpisodes, schemas
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
from taskapp_kit.interop.protocols import ENVIRONMENT_PARAMETERS, READING, body_of
from taskapp_kit.interop.split_tasks import TASK_VERBS, SplitType, splits_of, task_answer
from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.net.response import EncodedResponse, Headers, json_answer
from taskapp_kit.records.content import Json
from taskapp_kit.rollout.session import EnvironmentSession
from taskapp_kit.serve.auth import caller_of
from taskapp_kit.serve.route import Handler, RouteContext, RouteSpec, direct_answer, direct_routes, parsed
from taskapp_kit.serve.routes.sessions import FinishSession
from taskapp_kit.wire.field_problems import invalid_member

SESSION_HEADER = "X-Session-ID"
SESSION_SENT = {SESSION_HEADER: "The session's id. Send it with the next requests."}
SESSION_PARAMETERS: tuple[dict[str, Any], ...] = (
    {"name": SESSION_HEADER, "in": "header", "schema": {"type": "string"}},
    {"name": "session_id", "in": "query", "schema": {"type": "string"}},
)
PLAYING = (400, *READING, 409, 429, 500, 502, 504)
HEALTH = {"draining": "unhealthy", "store_failing": "degraded"}
API_VERSION = "1.0.0"
"""The value of `info.version` in OpenEnv's own OpenAPI document."""


def openenv_routes(context: RouteContext) -> Sequence[BaseRoute]:
    """Return the routes of all environments. The default environment also has routes whose paths omit its name."""
    handlers = OpenEnvHandlers(context)
    routes: list[BaseRoute] = []
    for prefix, parameters in ((f"/{PROTOCOL}", ()), (f"/{PROTOCOL}/{{environment}}", ENVIRONMENT_PARAMETERS)):
        named = "{name}" if parameters else "{environment}"
        paths = [(f"{prefix}/{spec.path}", spec) for spec in handlers.verbs()]
        paths += [(f"{prefix}/{named}/{spec.path}", spec) for spec in handlers.task_verbs()]
        specs = [
            replace(spec, path=path, parameters=(*ENVIRONMENT_PARAMETERS, *spec.parameters)) for path, spec in paths
        ]
        for route in direct_routes(specs, context):
            # the other paths have the same documentation
            route.include_in_schema = (
                route.path.startswith(f"/{PROTOCOL}/{{environment}}/") and "{name}" not in route.path
            )
            routes.append(route)
    dialect = RouteSpec("/mcp", "POST", handlers.openenv_mcp, "OpenEnv: call tools by JSON-RPC")
    for path in MCP_PATHS:
        routes.append(McpPathRoute(path, direct_answer(dialect, context), streamable=False))
    return [*routes, *socket_routes(handlers.episodes)]


class OpenEnvHandlers:
    """The handlers of a server's routes. Their docstrings appear in the OpenAPI document."""

    def __init__(self, context: RouteContext) -> None:
        self.episodes = OpenEnvEpisodes(context)

    async def openenv_health(self, context: RouteContext, request: Request) -> EncodedResponse:
        """Reports whether the server accepts sessions."""
        self._environment(request)
        return json_answer({"status": HEALTH.get(context.service.health()["status"], "healthy")})

    async def openenv_metadata(self, _: RouteContext, request: Request) -> EncodedResponse:
        """Describes the environment."""
        return json_answer(self.episodes.metadata(self._environment(request)))

    async def openenv_schema(self, _: RouteContext, request: Request) -> EncodedResponse:
        """Returns the JSON Schemas of actions, observations and states."""
        return json_answer(schemas(self._environment(request)))

    async def openenv_document(self, _: RouteContext, request: Request) -> EncodedResponse:
        """Returns a short OpenAPI document of this environment's routes, for `openenv validate`."""
        paths = {f"/{spec.path}": {spec.method.lower(): {"summary": spec.summary}} for spec in self.verbs()}
        info = {"title": self._environment(request).name, "version": API_VERSION}
        return json_answer({"openapi": "3.1.0", "info": info, "paths": paths})

    async def openenv_state(self, _: RouteContext, request: Request) -> EncodedResponse:
        """Describes the session's episode. Without a session id, `episode_id` is null."""
        self._environment(request)
        session = self._session(request)
        return json_answer(NO_STATE if session is None else self.episodes.state(session))

    async def openenv_reset(self, context: RouteContext, request: Request) -> EncodedResponse:
        """Begins an episode in the session that the request identifies, or otherwise in a new session.

        The session's id is in the response's metadata and in a header of the response.
        """
        environment = self._environment(request)
        body = await body_of(context, request)
        session = self._session(request, body)
        body.pop("session_id", None)
        if session is not None:
            return _answered(session, await self.episodes.reset(session, body))
        session = await self.episodes.open(environment, caller_of(request.scope))
        try:
            return _answered(session, await self.episodes.reset(session, body))
        except Exception:
            await session.close()
            raise

    async def openenv_step(self, context: RouteContext, request: Request) -> EncodedResponse:
        """Runs an action in the session's episode."""
        self._environment(request)
        body = await body_of(context, request, required=True)
        action = body.get("action")
        if not isinstance(action, dict):
            message = "is missing" if "action" not in body else "should be an object"
            raise invalid_member("request", "action", message)
        call = parsed(FinishSession, {name: body[name] for name in ("request_id", "timeout_s") if name in body})
        session = self._needed_session(request, body)
        answer = await self.episodes.step(session, action, request_id=call.request_id, seconds=call.timeout_s)
        return _answered(session, answer)

    async def openenv_finish(self, context: RouteContext, request: Request) -> EncodedResponse:
        """Truncates, scores and stores the session's episode."""
        self._environment(request)
        session = self._needed_session(request, await body_of(context, request))
        return _answered(session, await self.episodes.finish(session))

    async def openenv_close(self, context: RouteContext, request: Request) -> EncodedResponse:
        """Closes the session."""
        self._environment(request)
        session = self._needed_session(request, await body_of(context, request))
        await session.close()
        return json_answer(self.episodes.state(session))

    async def openenv_mcp(self, context: RouteContext, request: Request) -> EncodedResponse:
        """Handles OpenEnv's dialect of JSON-RPC.

        The methods are tools/list, tools/call, openenv/session/create and openenv/session/close.
        """
        environment = self._environment(request)
        try:
            body = await body_of(context, request)
        except RequestError:
            return json_answer(rpc_failure(PARSE_ERROR, "The body is not a JSON object."))
        return json_answer(await rpc_answer(self.episodes, environment, caller_of(request.scope), body))

    # -- tasks, as openenv 0.10 lists them ---------------------------------------------------------------------------

    async def openenv_environments(self, context: RouteContext, request: Request) -> EncodedResponse:
        """Lists the environments at this base URL. The default environment is first."""
        if "environment" in request.path_params:
            return json_answer([self._environment(request).name])
        return json_answer(list(context.service.spec.environments))

    async def openenv_splits(self, _: RouteContext, request: Request) -> EncodedResponse:
        """Lists the splits."""
        return json_answer(splits_of(self._environment_of_tasks(request)))

    def _of_tasks(self, name: str, words: str) -> Handler:
        async def answer(context: RouteContext, request: Request) -> EncodedResponse:
            environment = self._environment_of_tasks(request)
            return json_answer(await task_answer(environment, name, await body_of(context, request)))

        answer.__name__ = f"openenv_{name}"
        answer.__doc__ = f"Returns {words[0].lower()}{words[1:]}."
        return answer

    # -- parts of a request ----------------------------------------------------------------------------------------

    def _environment(self, request: Request) -> EnvironmentSpec:
        return self.episodes.environment(request.path_params.get("environment"))

    def _environment_of_tasks(self, request: Request) -> EnvironmentSpec:
        """Return the environment that the request's path names.

        If a client's base URL contains the environment's name, the path contains the name twice. Raises RequestRefused
        (404) if the two names differ.
        """
        environment = self._environment(request)
        if request.path_params.get("name", environment.name) != environment.name:
            raise RequestRefused(
                "not_found",
                f"The base URL selects environment {environment.name!r}, so no other environment is available.",
                hint=f"Use the base URL /{PROTOCOL} for all environments.",
            )
        return environment

    def _session(self, request: Request, body: dict[str, Any] | None = None) -> EnvironmentSession | None:
        """Return the session whose id is in a header, the query or the body, or None if there is no id."""
        body_id = (body or {}).get("session_id")
        if body_id is not None and not isinstance(body_id, str):
            raise RequestError("session_id should be a string.")
        session_id = request.headers.get(SESSION_HEADER) or request.query_params.get("session_id") or body_id
        if session_id is None:
            return None
        return self.episodes.find(session_id, self._environment(request), caller_of(request.scope))

    def _needed_session(self, request: Request, body: dict[str, Any]) -> EnvironmentSession:
        session = self._session(request, body)
        if session is None:
            raise RequestError(
                "The request does not contain a session id.",
                fields=(FieldProblem(("body", "session_id"), "is missing"),),
                hint=f"Set the header {SESSION_HEADER} to the session_id in the metadata of the /reset response, "
                "or use the WebSocket at /ws.",
            )
        return session

    # -- the routes --------------------------------------------------------------------------------------------------

    def verbs(self) -> list[RouteSpec]:
        """Return an environment's routes. Their paths are relative to the environment's base URL."""
        state = _about("state", self.openenv_state, "OpenEnv: describe the episode", OpenEnvState)
        close = _playing("close", self.openenv_close, "OpenEnv: close the session", OpenEnvSession)
        rpc = RouteSpec("mcp", "POST", self.openenv_mcp, "OpenEnv: call tools by JSON-RPC")
        return [
            _about("list_environments", self.openenv_environments, "OpenEnv: the environments", list[str]),
            _about("health", self.openenv_health, "OpenEnv: whether the server accepts sessions", OpenEnvHealth),
            _about("metadata", self.openenv_metadata, "OpenEnv: describe the environment", OpenEnvMetadata),
            _about("schema", self.openenv_schema, "OpenEnv: the JSON Schemas", OpenEnvSchemas),
            _about("openapi.json", self.openenv_document, "OpenEnv: the environment's routes", dict[str, Any]),
            replace(state, failures=(404, 409, 422), parameters=SESSION_PARAMETERS),
            _playing("reset", self.openenv_reset, "OpenEnv: begin an episode", OpenEnvReset),
            replace(_playing("step", self.openenv_step, "OpenEnv: do one action", OpenEnvStep), body_required=True),
            _playing("finish", self.openenv_finish, "OpenEnv: end the episode and score it", OpenEnvSession),
            replace(close, response_model=OpenEnvState, headers={}),
            replace(rpc, response_model=OpenEnvRpcAnswer, failures=READING),
        ]

    def task_verbs(self) -> list[RouteSpec]:
        """Return the routes for an environment's tasks. Their paths are relative to the environment's base URL."""
        return [
            _about("splits", self.openenv_splits, "OpenEnv: the splits", list[SplitType]),
            *(
                RouteSpec(
                    name,
                    "POST",
                    self._of_tasks(name, words),
                    f"OpenEnv: {words}",
                    request_model=model,
                    response_model=answered,
                    failures=(400, *READING),
                )
                for name, (model, answered, words) in TASK_VERBS.items()
            ),
        ]


def _about(name: str, answer: Handler, summary: str, model: Any) -> RouteSpec:
    return RouteSpec(name, "GET", answer, summary, response_model=model, failures=(404,))


def _playing(name: str, answer: Handler, summary: str, body: type[BaseModel]) -> RouteSpec:
    return RouteSpec(
        name,
        "POST",
        answer,
        summary,
        request_model=body,
        body_required=False,
        response_model=OpenEnvAnswer,
        failures=PLAYING,
        parameters=SESSION_PARAMETERS,
        headers=SESSION_SENT,
    )


def _answered(session: EnvironmentSession, answer: dict[str, Json]) -> EncodedResponse:
    headers: Headers = [(SESSION_HEADER.lower().encode(), session.session_id.encode())]
    return json_answer(answer, headers=headers)
