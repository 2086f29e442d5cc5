"""How a route is declared, what its function receives, how it is called; and a wire protocol of others, which adds routes.

Route functions are called directly: FastAPI only documents the routes, and neither parses nor validates.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import pydantic
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from taskapp_kit.config import Settings
from taskapp_kit.declare.app import Exposure
from taskapp_kit.errors import RequestError, StoreError
from taskapp_kit.net.error_response import ClientGone, short_part
from taskapp_kit.net.response import EncodedResponse, peer_of
from taskapp_kit.rollout.describe import Description
from taskapp_kit.serve.auth import LABEL
from taskapp_kit.serve.errors import ERRORS, error_answer
from taskapp_kit.serve.openapi_models import ErrorEnvelope
from taskapp_kit.serve.rollout_stream import EventStream
from taskapp_kit.serve.telemetry.metrics import Metrics
from taskapp_kit.wire.field_problems import body_problems

if TYPE_CHECKING:
    from taskapp_kit.rollout.service import Service
    from taskapp_kit.rollout.shared_rollouts import SharedRollouts

log = logging.getLogger("taskapp_kit.serve")

M = TypeVar("M", bound=pydantic.BaseModel)

ENVIRONMENT = "{environment}"
"""The parameter of a path that an environment's name stands for."""
CLIENT_GONE = 499
"""The status in the metrics of a request whose client closed the connection first; it is never sent."""

REF = "#/components/schemas/{model}"
SECURITY = {
    "X-API-Key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "Bearer": {"type": "http", "scheme": "bearer"},
    "Basic": {"type": "http", "scheme": "basic", "description": "The password is the key; the name is ignored."},
}
KEYED_FAILURES = (401, 503)
TITLES = {
    400: "The request is refused",
    401: "No valid key",
    403: "The key may not ask for that",
    404: "There is no such thing",
    408: "The body did not arrive in time",
    409: "It does not fit what went before",
    410: "It has ended",
    413: "The body is too large",
    415: "The body is not plain JSON",
    422: "A field is wrong; `fields` names it",
    429: "The key has as many rollouts under way as it may",
    500: "The environment, a rubric or the server failed",
    502: "The policy failed",
    503: "No key is configured, or every place is taken",
    504: "The rollout's deadline passed",
}

ANSWER_HEADERS = {
    401: {"WWW-Authenticate": "How a key may be sent."},
    429: {"Retry-After": "Seconds until it is worth asking again."},
    503: {"Retry-After": "Seconds until it is worth asking again; absent when no key is configured."},
}
LOCATION = {"Location": "Where the rollout is found."}
REPLAYED_HEADERS = {"Idempotent-Replayed": "`true`: the answer of an earlier request."}
STREAMED_HEADERS = {**REPLAYED_HEADERS, **LOCATION}
ACCEPTED_HEADERS = {
    **LOCATION,
    "Preference-Applied": "`respond-async`, when that was asked for.",
    "Retry-After": "Seconds until it is worth asking again.",
}


STREAM = (
    "Answered. As text/event-stream: server-sent events with `id`, `event` and `data`, the rollout's events and at the end "
    "`result` with a RolloutResponse or `failure` with an ErrorEnvelope."
)


@dataclass(frozen=True, slots=True)
class RouteContext:
    """What the function of a route receives."""

    service: Service
    shared_rollouts: SharedRollouts
    metrics: Metrics
    settings: Settings
    description: Description
    exposure: Exposure


Handler = Callable[[RouteContext, Request], Awaitable[EncodedResponse | EventStream]]


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """One route. `answer` is a plain function; the models only document it in OpenAPI.

    method: a GET of "/" also handles HEAD. parameters: OpenAPI parameters (query, path, headers). streams: the response
    may be an event stream. body_required: whether an empty body is refused. accepted_model: the model of a 202.
    other_media_types: those that `Accept` may select. headers: those of its 200, with what they say.
    """

    path: str
    method: str
    answer: Handler
    summary: str
    request_model: type[pydantic.BaseModel] | None = None
    response_model: Any = None
    streams: bool = False
    body_required: bool = True
    accepted_model: type[pydantic.BaseModel] | None = None
    parameters: tuple[dict[str, Any], ...] = ()
    failures: tuple[int, ...] = ()
    keyed: bool = True
    media_type: str = "application/json"
    other_media_types: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)


class SharedPathRoute(BaseRoute):
    """A route at a path that is one of the kit's own. It is asked first, and must not match the kit's requests."""

    path: str


class DirectRoute(APIRoute):
    """A route that is in the OpenAPI document and calls its function without FastAPI's dependencies and validation."""

    direct: ASGIApp
    allowed: list[str]
    request_model: type[pydantic.BaseModel] | None

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["method"] in (self.methods or ()):
            await self.direct(scope, receive, send)
        else:
            await ERRORS.method_not_allowed(self.allowed)(scope, receive, send)


def direct_routes(specs: Sequence[RouteSpec], context: RouteContext) -> list[DirectRoute]:
    """Return the routes for FastAPI's router."""
    routes = [_direct_route(spec, context) for spec in specs]
    for route in routes:  # a path may have several, one for each method
        route.allowed = [verb for other in routes if other.path == route.path for verb in other.methods or ()]
    return routes


def direct_paths(routes: Sequence[BaseRoute], environments: Iterable[str]) -> dict[tuple[str, str], ASGIApp]:
    """Return what the router chooses by method and path, where the path has no parameter but an environment's name.

    A request that is looked up here is spared the router, which compares its path with that of one route after the other.
    Where it depends on more than method and path, the router decides.
    """
    # an environment's name is the one parameter whose values are known
    names = list(environments)
    found: dict[tuple[str, str], ASGIApp] = {}
    for route in routes:
        direct = getattr(route, "named", route)
        if not isinstance(direct, DirectRoute):
            continue
        places = [(direct.path, direct.direct)]
        if ENVIRONMENT in direct.path:
            places = [
                (direct.path.replace(ENVIRONMENT, name), _with_environment(direct.direct, name)) for name in names
            ]
        for path, answer in places:
            for method in direct.methods or ():
                # an earlier route may take the path away from this one
                if "{" not in path and _chosen(routes, method, path) is route:
                    found[method, path] = answer
    return found


def _chosen(routes: Sequence[BaseRoute], method: str, path: str) -> BaseRoute | None:
    """Return the route for any request with this method and path; None where it depends on more."""
    scope = {"type": "http", "method": method, "path": path, "headers": [], "root_path": ""}
    for route in routes:
        if isinstance(route, SharedPathRoute) and route.path == path:
            return None
        if route.matches(scope)[0] is Match.FULL:
            return route
    return None


def _with_environment(answer: ASGIApp, name: str) -> ASGIApp:
    """Return the application of a path with an environment's name, which the router would read from it."""

    async def named(scope: Scope, receive: Receive, send: Send) -> None:
        scope["path_params"] = {"environment": name}
        await answer(scope, receive, send)

    return named


def _direct_route(spec: RouteSpec, context: RouteContext) -> DirectRoute:
    # FastAPI reads a route's documentation from a function's signature, and ours has other parameters
    async def documented(_: Request) -> Response:
        raise AssertionError("a direct route is handled by its own function")

    # load balancers ask HEAD / whether a server lives
    methods = [spec.method, "HEAD"] if spec.path == "/" else [spec.method]
    name = spec.answer.__name__
    documented.__name__ = name
    route = DirectRoute(
        spec.path,
        documented,
        methods=methods,
        name=name,
        operation_id=name,
        summary=spec.summary,
        description=(spec.answer.__doc__ or "").strip(),
        response_model=None,
        **documentation(spec),
    )
    route.direct = direct_answer(spec, context)
    route.request_model = spec.request_model
    return route


def direct_answer(spec: RouteSpec, context: RouteContext) -> ASGIApp:
    """Return the ASGI application of a route: its function, and what every route has around it."""
    # bytes in and bytes out, without FastAPI's validation: a small rollout should cost less than a millisecond of CPU,
    # and one strict reader of JSON keeps a text from meaning one thing to us and another to the author
    answer_it = spec.answer
    where = spec.path

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        answer: EncodedResponse | EventStream
        try:
            answer = await answer_it(context, Request(scope, receive))
        # not an error of the server: a trainer gives up on many rollouts
        except ClientGone:
            log.info("client gone route=%s", where)
            context.metrics.answered(spec.method, where, CLIENT_GONE)
            return
        except Exception as error:
            if isinstance(error, StoreError):
                context.metrics.store_failed()
            answer = error_answer(error, where=where)
        # before it is sent: how fast a client reads must not delay what operators see
        context.metrics.answered(spec.method, where, answer.status)
        # a rollout counts for its key until its answer is read, or callers could pile up answers of megabytes
        with context.service.admission.unread(scope.get(LABEL), answer.rollout_id, peer_of(scope)):
            await answer(scope, receive, send)

    return run


def parameter(name: str, where: str, description: str, **schema: Any) -> dict[str, Any]:
    """Return the OpenAPI object of an optional parameter. where: "query" or "header"."""
    return {"name": name, "in": where, "required": False, "description": description, "schema": schema}


def documentation(spec: RouteSpec) -> dict[str, Any]:
    """Return the keyword arguments that document one route in FastAPI."""
    failures = sorted({*spec.failures, *(KEYED_FAILURES if spec.keyed else ())})
    responses: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorEnvelope, "description": TITLES[status]} for status in failures
    }
    if spec.response_model is not None:
        responses[200] = {"model": spec.response_model, "description": "Answered"}
        if spec.streams:
            # no schema: OpenAPI 3.1 has none for the items of a stream, and some tools apply `schema` to each of them
            responses[200] |= {"content": {"text/event-stream": {}}, "description": STREAM}
            if spec.method == "GET":  # only a stream that is resumed can have nothing left
                responses[204] = {"description": "Of a stream: it was over, and all of it had arrived"}
    else:
        kinds: dict[str, Any] = {name: {} for name in (spec.media_type, *spec.other_media_types)}
        responses[200] = {"content": kinds, "description": "Answered"}
    if spec.accepted_model is not None:
        responses[202] = {"model": spec.accepted_model, "description": "Under way; `Location` says where it is found"}
    headers: dict[int, dict[str, str]] = dict(ANSWER_HEADERS)
    if spec.headers:
        headers[200] = dict(spec.headers)
    if spec.streams:
        headers[200] = STREAMED_HEADERS
        for failed in (500, 502, 503, 504):  # a failure is replayed as that failure
            headers[failed] = REPLAYED_HEADERS | headers.get(failed, {})
    if spec.accepted_model is not None:
        headers[202] = ACCEPTED_HEADERS
    for status in responses.keys() & headers.keys():
        responses[status]["headers"] = {
            name: {"description": words, "schema": {"type": "string"}} for name, words in headers[int(status)].items()
        }
    extra: dict[str, Any] = {"parameters": list(spec.parameters)} if spec.parameters else {}
    extra["security"] = [{name: []} for name in SECURITY] if spec.keyed else []
    if spec.request_model is not None:
        reference = {"$ref": REF.format(model=spec.request_model.__name__)}
        extra["requestBody"] = {"required": spec.body_required, "content": {"application/json": {"schema": reference}}}
    return {"responses": responses, "openapi_extra": extra}


@dataclass(frozen=True, slots=True)
class ClientLines:
    """The lines that a client of a served app needs.

    title: the client and its versions. language: `python`, `sh`, `toml` or `json`. text: the lines; the server's key is read from
    the variable ENVIRONMENT_API_KEY, and is never in them.
    """

    title: str
    language: str
    text: str


@dataclass(frozen=True, slots=True)
class WireProtocol:
    """One protocol of others, and how a server speaks it. A package of `interop` exports it as `PROTOCOL`.

    name: of its package, and in `--protocols`. summary: the protocol and its versions, in some words. routes: returns the
    routes; all of them need a key. clients: returns what a user pastes, for a server's address (without a slash at its end)
    and its environments, the default one first.
    """

    name: str
    summary: str
    # routes, not an application: they are in the one OpenAPI document, behind the one key check
    routes: Callable[[RouteContext], Sequence[BaseRoute]]
    clients: Callable[[str, Sequence[str]], Sequence[ClientLines]]


def invalid_request(error: pydantic.ValidationError, body: Any) -> RequestError:
    """Return the error of a body that does not fit its model. body: distinguishes field names from union tags."""
    fields = body_problems(error, body)
    # at most five: a caller may send a body in which every field is wrong
    named = ", ".join(".".join(str(short_part(part)) for part in problem.loc[1:]) for problem in fields[:5])
    return RequestError(
        f"The request body does not fit: {named}.",
        fields=fields,
        hint="`fields` says what each one should be; the models are in /openapi.json.",
    )


def parsed(model: type[M], body: Any) -> M:
    """Return the body as its model. Raises RequestError."""
    try:
        return model.model_validate(body)
    except pydantic.ValidationError as error:
        raise invalid_request(error, body) from None
