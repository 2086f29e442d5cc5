"""ORS's routes: at `/ors` and at the root, each with an environment's name before it or not. None answers a redirect."""

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
from taskapp_kit.interop.ors.blocks import prompt_blocks, role_messages
from taskapp_kit.interop.ors.door import (
    MAX_SESSION_ID,
    PROTOCOL,
    CreateSession,
    OrsCall,
    OrsDoor,
    OrsSession,
    ScoreGroup,
    starting,
)
from taskapp_kit.interop.ors.models import OrsBlock, OrsMessage, OrsSid, OrsStatus, OrsTools
from taskapp_kit.interop.ors.stream import event, whole_stream
from taskapp_kit.interop.split_tasks import TASK_VERBS, SplitType, splits_of, task_answer
from taskapp_kit.net.body import read_json
from taskapp_kit.net.error_response import RequestRefused
from taskapp_kit.net.response import EncodedResponse, json_answer, peer_of
from taskapp_kit.serve.auth import caller_of
from taskapp_kit.serve.errors import error_answer
from taskapp_kit.serve.route import RouteContext, RouteSpec
from taskapp_kit.serve.routes.sessions import parsed
from taskapp_kit.serve.routing import DirectRoute, SharedPathRoute, direct_routes
from taskapp_kit.version import __version__

SESSION_HEADER = "X-Session-ID"
DEPLOYMENT_HEADER = "X-Deployment"
"""openreward sends the name here that its caller gave, and no name in the path unless the caller gave a `variant`."""
PARAMETERS = ({"name": "environment", "in": "path", "required": True, "schema": {"type": "string"}},)
SESSION_PARAMETERS: tuple[dict[str, Any], ...] = (
    {
        "name": SESSION_HEADER,
        "in": "header",
        "required": True,
        "schema": {"type": "string", "minLength": 1, "maxLength": MAX_SESSION_ID},
    },
)
READING = (404, 408, 413, 415, 422)
OF_SESSION = (400, 404, 422)
BEGUN = (*OF_SESSION, 409, 410, 429, 500)
EVENT_STREAM = "text/event-stream"
SECOND_NAMES = ("//ping", "/delete_session")
KITS_OWN = "/health"
"""A path at the root that is the kit's own, and says the same."""
SHARED = "/score_group"
"""Another one, whose requests differ: those of ORS name a session."""

Answer = Callable[[RouteContext, Request], Awaitable[EncodedResponse]]


def ors_routes(context: RouteContext) -> Sequence[BaseRoute]:
    """Return the routes of all environments, and those of the default one without its name."""
    door = OrsDoor(context)

    def named(request: Request) -> EnvironmentSpec | None:
        """Return the environment that the path names."""
        name = request.path_params.get("environment")
        return None if name is None else door.environment(name)

    def environment_of(request: Request) -> EnvironmentSpec:
        return named(request) or door.environment(None, request.headers.get(DEPLOYMENT_HEADER))

    async def body_of(request: Request) -> dict[str, Any]:
        return await read_json(request.scope, request.receive, context.settings.max_body_bytes)

    def sid_of(request: Request) -> str:
        sid = request.headers.get(SESSION_HEADER, "").strip()
        if not 0 < len(sid) <= MAX_SESSION_ID:
            raise RequestRefused(
                "session_header_missing",
                f"The request needs the header {SESSION_HEADER}.",
                hint="/create_session returns an id as its task_id.",
            )
        return sid

    def session_of(request: Request) -> OrsSession:
        return door.find(sid_of(request), caller_of(request.scope), named(request))

    # -- the server ------------------------------------------------------------------------------------------------

    async def ors_health(_: RouteContext, __: Request) -> EncodedResponse:
        """Reports that the server answers."""
        return json_answer({"status": "ok"})

    async def ors_version(_: RouteContext, __: Request) -> EncodedResponse:
        """Returns the version of the server."""
        return json_answer({"version": f"taskapp-kit {__version__}", "build_sha": None})

    async def ors_environments(_: RouteContext, __: Request) -> EncodedResponse:
        """Lists the environments' names, the default one first."""
        return json_answer(list(context.service.spec.environments))

    # -- tasks and tools -------------------------------------------------------------------------------------------

    async def ors_splits(_: RouteContext, request: Request) -> EncodedResponse:
        """Lists the splits with the standard's types."""
        return json_answer(splits_of(environment_of(request)))

    async def ors_tools(_: RouteContext, request: Request) -> EncodedResponse:
        """Lists the tools."""
        return json_answer(door.tools(environment_of(request)))

    def of_tasks(name: str) -> Answer:
        async def tasks(_: RouteContext, request: Request) -> EncodedResponse:
            environment = environment_of(request)
            return json_answer(await task_answer(environment, name, await body_of(request)))

        tasks.__name__ = f"ors_{name}"
        return tasks

    # -- sessions --------------------------------------------------------------------------------------------------

    async def ors_create_session(_: RouteContext, __: Request) -> EncodedResponse:
        """Returns an id for a session, as an event; `/create` opens it."""
        return whole_stream(event("task_id", str(uuid.uuid4())), event("end", ""))

    async def ors_create(_: RouteContext, request: Request) -> EncodedResponse:
        """Opens the session and begins its episode; the answer does not wait for the first observation."""
        sid = sid_of(request)
        wanted = parsed(CreateSession, await body_of(request))
        environment = environment_of(request)
        if wanted.env_name is not None:
            environment = door.environment(wanted.env_name)
        try:
            await door.create(environment, sid, caller_of(request.scope), wanted)
        except Saturated as full:
            answer = error_answer(full, where=f"/{PROTOCOL}/create")
            if answer.status == 503:  # the clients repeat it until there is a place
                answer.headers = [*answer.headers[:-1], *starting(full.retry_after_seconds)]
            return answer
        return json_answer({"sid": sid})

    async def ors_ping(_: RouteContext, request: Request) -> EncodedResponse:
        """Counts as using the session."""
        session_of(request)
        return json_answer({"status": "ok"})

    async def ors_delete(_: RouteContext, request: Request) -> EncodedResponse:
        """Closes the session; an episode under way ends as cancelled. One that does not exist is closed already."""
        sid = sid_of(request)
        await door.delete(sid, caller_of(request.scope))
        return json_answer({"sid": sid})

    async def ors_prompt(_: RouteContext, request: Request) -> EncodedResponse:
        """Returns what a model is shown first, as blocks: the instructions, and the first observation."""
        return json_answer(prompt_blocks((await session_of(request).started(door.setup_seconds)).messages))

    async def ors_messages(_: RouteContext, request: Request) -> EncodedResponse:
        """Returns what a model is shown first, as messages."""
        return json_answer(role_messages((await session_of(request).started(door.setup_seconds)).messages))

    async def ors_task_tools(_: RouteContext, request: Request) -> EncodedResponse:
        """Lists the tools of the session's task, which are those of its environment."""
        return json_answer(door.tools(session_of(request).session.environment))

    async def ors_call(_: RouteContext, request: Request) -> EncodedResponse:
        """Calls a tool, which is one step of the episode; the answer is an event stream."""
        found = session_of(request)
        return await door.call(found, parsed(OrsCall, await body_of(request)), peer_of(request.scope))

    async def ors_score_group(_: RouteContext, request: Request) -> EncodedResponse:
        """Ranks rollouts of the session's task against each other; the answer is an event stream."""
        found = session_of(request)
        return door.score_group(found, parsed(ScoreGroup, await body_of(request)), peer_of(request.scope))

    def spec(name: str, method: str, answer: Answer, words: str, model: Any = None, **more: Any) -> RouteSpec:
        return RouteSpec(name, method, _failing(answer), f"ORS: {words}", response_model=model, **more)

    def of_session(name: str, method: str, answer: Answer, words: str, model: Any = None, **more: Any) -> RouteSpec:
        return spec(name, method, answer, words, model, parameters=SESSION_PARAMETERS, **more)

    server_verbs = (
        spec("health", "GET", ors_health, "whether the server answers", dict[str, str]),
        spec("version", "GET", ors_version, "the server's version", dict[str, Any]),
        spec("list_environments", "GET", ors_environments, "the environments", list[str]),
    )
    verbs = (
        spec("splits", "GET", ors_splits, "the splits", list[SplitType], failures=(404,)),
        spec("tools", "GET", ors_tools, "the tools", OrsTools, failures=(404,)),
        *(
            spec(name, "POST", of_tasks(name), words, answered, request_model=model, failures=(400, *READING))
            for name, (model, answered, words) in TASK_VERBS.items()
        ),
        spec("create_session", "POST", ors_create_session, "an id for a session", media_type=EVENT_STREAM),
        of_session(
            "create", "POST", ors_create, "open a session", OrsSid,
            request_model=CreateSession, failures=(400, *READING, 429),
        ),
        of_session("ping", "POST", ors_ping, "keep a session open", OrsStatus, failures=OF_SESSION),
        of_session("/ping", "POST", ors_ping, "openreward's, whose base URL ends with a slash", OrsStatus, failures=OF_SESSION),
        of_session("delete", "POST", ors_delete, "close a session", OrsSid, failures=(400,)),
        of_session("delete_session", "POST", ors_delete, "close a session", OrsSid, failures=(400,)),
        of_session("prompt", "GET", ors_prompt, "the prompt", list[OrsBlock], failures=BEGUN),
        of_session("messages", "GET", ors_messages, "the prompt as messages", list[OrsMessage], failures=BEGUN),
        of_session("task_tools", "GET", ors_task_tools, "the tools of a session", OrsTools, failures=OF_SESSION),
        of_session(
            "call", "POST", ors_call, "call a tool",
            request_model=OrsCall, media_type=EVENT_STREAM, failures=(*BEGUN, 408, 413, 415),
        ),
        of_session(
            "score_group", "POST", ors_score_group, "rank a group of rollouts",
            request_model=ScoreGroup, media_type=EVENT_STREAM, failures=(*OF_SESSION, 408, 409, 413, 415),
        ),
    )  # fmt: skip
    routes: list[BaseRoute] = []
    for prefix in (f"/{PROTOCOL}", f"/{PROTOCOL}/{{environment}}", "", "/{environment}"):
        bare = "{" not in prefix
        specs = [
            replace(
                verb,
                path=f"{prefix}/{verb.path}",
                parameters=verb.parameters if bare else (*PARAMETERS, *verb.parameters),
            )
            for verb in (*(server_verbs if bare else ()), *verbs)
            if f"{prefix}/{verb.path}" != KITS_OWN
        ]
        for route in direct_routes(specs, context):
            # the others are the same
            route.include_in_schema = prefix == f"/{PROTOCOL}/{{environment}}" and not route.path.endswith(SECOND_NAMES)
            if prefix == "/{environment}":
                routes.append(_OfEnvironment(route, door))
            else:
                routes.append(_OfSession(route) if route.path == SHARED else route)
    return routes


def _failing(answer: Answer) -> Answer:
    """Answer a failed episode with 500: other statuses of that kind are repeated by the clients, and it stays failed."""

    async def answered(context: RouteContext, request: Request) -> EncodedResponse:
        try:
            return await answer(context, request)
        except RolloutFailed as failed:
            found = error_answer(failed)
            return EncodedResponse(500, found.body)

    answered.__name__, answered.__doc__ = answer.__name__, answer.__doc__
    return answered


class _OfSession(SharedPathRoute):
    """A route that is there for requests that name a session."""

    def __init__(self, route: DirectRoute) -> None:
        self._route = route
        self.handle = route.handle  # type: ignore[method-assign]
        self.path = route.path

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match as the route does, where the header is there."""
        if scope["type"] == "http" and any(name == SESSION_HEADER.lower().encode() for name, _ in scope["headers"]):
            return self._route.matches(scope)
        return Match.NONE, {}


class _OfEnvironment(BaseRoute):
    """A route at the root that is there for the names of environments only."""

    def __init__(self, route: DirectRoute, door: OrsDoor) -> None:
        self.named = route
        self._door = door
        self.handle = route.handle  # type: ignore[method-assign]
        self.path = route.path

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match as the route does, unless the name is no environment's."""
        match, child = self.named.matches(scope)
        if match is not Match.NONE and self._door.known(child["path_params"]["environment"]) is None:
            return Match.NONE, {}
        return match, child
