"""ORS's routes, at `/ors` and at the root, each with and without an environment's name. No route redirects."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from taskapp_kit.declare.specs import EnvironmentSpec
from taskapp_kit.errors import RolloutFailed, Saturated
from taskapp_kit.interop.ors.episodes import (
    MAX_SESSION_ID,
    PROTOCOL,
    OrsEpisodes,
    OrsSession,
    prompt_blocks,
    role_messages,
    starting,
)
from taskapp_kit.interop.ors.models import (
    CreateSession,
    OrsBlock,
    OrsCall,
    OrsMessage,
    OrsSid,
    OrsStatus,
    OrsTools,
    ScoreGroup,
)
from taskapp_kit.interop.ors.stream import event, whole_stream
from taskapp_kit.interop.protocols import ENVIRONMENT_PARAMETERS, READING, body_of
from taskapp_kit.interop.split_tasks import TASK_VERBS, SplitType, splits_of, task_answer
from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.net.response import EncodedResponse, json_answer, peer_of
from taskapp_kit.rollout.session import SessionStart
from taskapp_kit.serve.auth import caller_of
from taskapp_kit.serve.errors import error_answer
from taskapp_kit.serve.route import DirectRoute, RouteContext, RouteSpec, SharedPathRoute, direct_routes, parsed
from taskapp_kit.version import __version__

SESSION_HEADER = "X-Session-ID"
DEPLOYMENT_HEADER = "X-Deployment"
"""The header in which openreward sends the environment's name.

The path contains the name only if the caller passed `variant`.
"""
SESSION_PARAMETERS: tuple[dict[str, Any], ...] = (
    {
        "name": SESSION_HEADER,
        "in": "header",
        "required": True,
        "schema": {"type": "string", "minLength": 1, "maxLength": MAX_SESSION_ID},
    },
)
OF_SESSION = (400, 404, 422)
BEGUN = (*OF_SESSION, 409, 410, 429, 500)
EVENT_STREAM = "text/event-stream"
SLASHED_PING = "openreward's, whose base URL ends with a slash"
SECOND_NAMES = ("//ping", "/delete_session")
KITS_OWN = "/health"
"""A path at the root that is omitted, because the kit's own route returns the same response."""
SHARED = "/score_group"
"""A path at the root that the kit also uses. Only requests with a session id are ORS requests."""

Answer = Callable[[RouteContext, Request], Awaitable[EncodedResponse]]


def ors_routes(context: RouteContext) -> Sequence[BaseRoute]:
    """Return the routes of all environments. The default environment also has routes whose paths omit its name."""
    handlers = OrsHandlers(context)
    routes: list[BaseRoute] = []
    for prefix in (f"/{PROTOCOL}", f"/{PROTOCOL}/{{environment}}", "", "/{environment}"):
        bare = "{" not in prefix
        specs = [
            replace(
                verb,
                path=f"{prefix}/{verb.path}",
                parameters=verb.parameters if bare else (*ENVIRONMENT_PARAMETERS, *verb.parameters),
            )
            for verb in (*(handlers.server_verbs() if bare else ()), *handlers.verbs(), *handlers.session_verbs())
            if f"{prefix}/{verb.path}" != KITS_OWN
        ]
        for route in direct_routes(specs, context):
            # the other paths have the same documentation
            route.include_in_schema = prefix == f"/{PROTOCOL}/{{environment}}" and not route.path.endswith(SECOND_NAMES)
            if prefix == "/{environment}":
                routes.append(_OfEnvironment(route, handlers.episodes))
            else:
                routes.append(_OfSession(route) if route.path == SHARED else route)
    return routes


class OrsHandlers:
    """The handlers of a server's routes. Their docstrings appear in the OpenAPI document."""

    def __init__(self, context: RouteContext) -> None:
        self.episodes = OrsEpisodes(context)

    # -- the server ------------------------------------------------------------------------------------------------

    async def ors_health(self, _: RouteContext, __: Request) -> EncodedResponse:
        """Reports that the server is running."""
        return json_answer({"status": "ok"})

    async def ors_version(self, _: RouteContext, __: Request) -> EncodedResponse:
        """Returns the version of the server."""
        return json_answer({"version": f"taskapp-kit {__version__}", "build_sha": None})

    async def ors_environments(self, context: RouteContext, _: Request) -> EncodedResponse:
        """Lists the names of the environments. The default environment is first."""
        return json_answer(list(context.service.spec.environments))

    # -- tasks and tools -------------------------------------------------------------------------------------------

    async def ors_splits(self, _: RouteContext, request: Request) -> EncodedResponse:
        """Lists the splits with ORS's types."""
        return json_answer(splits_of(self._environment(request)))

    async def ors_tools(self, _: RouteContext, request: Request) -> EncodedResponse:
        """Lists the tools."""
        return json_answer(self.episodes.tools(self._environment(request)))

    def _of_tasks(self, name: str) -> Answer:
        async def tasks(context: RouteContext, request: Request) -> EncodedResponse:
            environment = self._environment(request)
            return json_answer(await task_answer(environment, name, await body_of(context, request)))

        tasks.__name__ = f"ors_{name}"
        return tasks

    # -- sessions --------------------------------------------------------------------------------------------------

    async def ors_create_session(self, _: RouteContext, __: Request) -> EncodedResponse:
        """Returns an id for a new session as an event. `/create` opens the session."""
        return whole_stream(event("task_id", str(uuid.uuid4())), event("end", ""))

    async def ors_create(self, context: RouteContext, request: Request) -> EncodedResponse:
        """Opens the session and begins its episode, without waiting for the first observation."""
        sid = _sid(request)
        creation = parsed(CreateSession, await body_of(context, request))
        environment = self._environment(request)
        if creation.env_name is not None:
            environment = self.episodes.environment(creation.env_name)
        try:
            await self.episodes.create(environment, sid, caller_of(request.scope), creation)
        except Saturated as full:
            answer = error_answer(full, where=f"/{PROTOCOL}/create")
            if answer.status == 503:  # clients repeat the request until a session is free
                answer.headers = [*answer.headers[:-1], *starting(full.retry_after_seconds)]
            return answer
        return json_answer({"sid": sid})

    async def ors_ping(self, _: RouteContext, request: Request) -> EncodedResponse:
        """Marks the session as used."""
        self._session(request)
        return json_answer({"status": "ok"})

    async def ors_delete(self, _: RouteContext, request: Request) -> EncodedResponse:
        """Closes the session and cancels its unfinished episode. An unknown session counts as closed."""
        sid = _sid(request)
        await self.episodes.delete(sid, caller_of(request.scope))
        return json_answer({"sid": sid})

    async def ors_prompt(self, _: RouteContext, request: Request) -> EncodedResponse:
        """Returns the first prompt of a model as blocks: the instructions and the first observation."""
        return json_answer(prompt_blocks((await self._started(request)).messages))

    async def ors_messages(self, _: RouteContext, request: Request) -> EncodedResponse:
        """Returns the first prompt of a model as messages."""
        return json_answer(role_messages((await self._started(request)).messages))

    async def ors_task_tools(self, _: RouteContext, request: Request) -> EncodedResponse:
        """Lists the tools of the session's environment."""
        return json_answer(self.episodes.tools(self._session(request).session.environment))

    async def ors_call(self, context: RouteContext, request: Request) -> EncodedResponse:
        """Calls a tool, which is one step of the episode. The response is an event stream."""
        session = self._session(request)
        return await self.episodes.call(
            session, parsed(OrsCall, await body_of(context, request)), peer_of(request.scope)
        )

    async def ors_score_group(self, context: RouteContext, request: Request) -> EncodedResponse:
        """Ranks rollouts of the session's task. The response is an event stream."""
        session = self._session(request)
        group = parsed(ScoreGroup, await body_of(context, request))
        return self.episodes.score_group(session, group, peer_of(request.scope))

    # -- parts of a request --------------------------------------------------------------------------------------

    def _named(self, request: Request) -> EnvironmentSpec | None:
        """Return the environment that the path names, or None if the path contains no name."""
        name = request.path_params.get("environment")
        return None if name is None else self.episodes.environment(name)

    def _environment(self, request: Request) -> EnvironmentSpec:
        return self._named(request) or self.episodes.environment(None, request.headers.get(DEPLOYMENT_HEADER))

    def _session(self, request: Request) -> OrsSession:
        return self.episodes.find(_sid(request), caller_of(request.scope), self._named(request))

    async def _started(self, request: Request) -> SessionStart:
        return await self._session(request).started(self.episodes.setup_seconds)

    # -- the routes ------------------------------------------------------------------------------------------------

    def server_verbs(self) -> list[RouteSpec]:
        """Return the routes for the server. Their paths are relative to a prefix."""
        return [
            _spec("health", "GET", self.ors_health, "whether the server answers", dict[str, str]),
            _spec("version", "GET", self.ors_version, "the server's version", dict[str, Any]),
            _spec("list_environments", "GET", self.ors_environments, "the environments", list[str]),
        ]

    def verbs(self) -> list[RouteSpec]:
        """Return the routes that need no session. Their paths are relative to a prefix."""
        return [
            _spec("splits", "GET", self.ors_splits, "the splits", list[SplitType], failures=(404,)),
            _spec("tools", "GET", self.ors_tools, "the tools", OrsTools, failures=(404,)),
            *(
                _spec(
                    name, "POST", self._of_tasks(name), words, answered, request_model=model, failures=(400, *READING)
                )
                for name, (model, answered, words) in TASK_VERBS.items()
            ),
            _spec("create_session", "POST", self.ors_create_session, "an id for a session", media_type=EVENT_STREAM),
        ]

    def session_verbs(self) -> list[RouteSpec]:
        """Return the routes that need a session. Their paths are relative to a prefix."""
        creating = {"request_model": CreateSession, "failures": (400, *READING, 429)}
        calling = {"request_model": OrsCall, "media_type": EVENT_STREAM, "failures": (*BEGUN, 408, 413, 415)}
        scoring = {
            "request_model": ScoreGroup,
            "media_type": EVENT_STREAM,
            "failures": (*OF_SESSION, 408, 409, 413, 415),
        }
        specs = [
            _spec("create", "POST", self.ors_create, "open a session", OrsSid, **creating),
            _spec("ping", "POST", self.ors_ping, "keep a session open", OrsStatus, failures=OF_SESSION),
            _spec("/ping", "POST", self.ors_ping, SLASHED_PING, OrsStatus, failures=OF_SESSION),
            _spec("delete", "POST", self.ors_delete, "close a session", OrsSid, failures=(400,)),
            _spec("delete_session", "POST", self.ors_delete, "close a session", OrsSid, failures=(400,)),
            _spec("prompt", "GET", self.ors_prompt, "the prompt", list[OrsBlock], failures=BEGUN),
            _spec("messages", "GET", self.ors_messages, "the prompt as messages", list[OrsMessage], failures=BEGUN),
            _spec("task_tools", "GET", self.ors_task_tools, "the tools of a session", OrsTools, failures=OF_SESSION),
            _spec("call", "POST", self.ors_call, "call a tool", **calling),
            _spec("score_group", "POST", self.ors_score_group, "rank a group of rollouts", **scoring),
        ]
        return [replace(spec, parameters=SESSION_PARAMETERS) for spec in specs]


def _spec(name: str, method: str, answer: Answer, words: str, model: Any = None, **more: Any) -> RouteSpec:
    return RouteSpec(name, method, _failing(answer), f"ORS: {words}", response_model=model, **more)


def _sid(request: Request) -> str:
    sid = request.headers.get(SESSION_HEADER, "").strip()
    if not 0 < len(sid) <= MAX_SESSION_ID:
        raise RequestRefused(
            "session_header_missing",
            f"The request needs the header {SESSION_HEADER}.",
            hint="Set the header to the task_id that /create_session returned.",
        )
    return sid


def _failing(answer: Answer) -> Answer:
    """Respond with 500 if the episode failed, because clients repeat requests after other 5xx statuses."""

    async def answered(context: RouteContext, request: Request) -> EncodedResponse:
        try:
            return await answer(context, request)
        except RolloutFailed as failed:
            return EncodedResponse(500, error_answer(failed).body)

    answered.__name__, answered.__doc__ = answer.__name__, answer.__doc__
    return answered


class _OfSession(SharedPathRoute):
    """A route that only matches requests with a session id."""

    def __init__(self, route: DirectRoute) -> None:
        self._route = route
        self.handle = route.handle  # type: ignore[method-assign]
        self.path = route.path

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return the match of the wrapped route if the header is present, and otherwise no match."""
        if scope["type"] == "http" and any(name == SESSION_HEADER.lower().encode() for name, _ in scope["headers"]):
            return self._route.matches(scope)
        return Match.NONE, {}


class _OfEnvironment(BaseRoute):
    """A route at the root that only matches names of environments."""

    def __init__(self, route: DirectRoute, episodes: OrsEpisodes) -> None:
        self.named = route
        self._episodes = episodes
        self.handle = route.handle  # type: ignore[method-assign]
        self.path = route.path

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return the match of the wrapped route if the path names an environment, and otherwise no match."""
        match, child = self.named.matches(scope)
        if match is not Match.NONE and self._episodes.known(child["path_params"]["environment"]) is None:
            return Match.NONE, {}
        return match, child
