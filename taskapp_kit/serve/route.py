"""Declarations of routes and of wire protocols, which add routes.

The server calls the functions of routes directly. FastAPI documents the routes, but does not parse or validate
requests.
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
from taskapp_kit.errors import FieldProblem, RequestError, StoreError
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
"""The path parameter for the name of an environment."""
CLIENT_GONE = 499
"""The status in the metrics when the client disconnects before the response. The status is never sent."""

REF = "#/components/schemas/{model}"
SECURITY = {
    "X-API-Key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "Bearer": {"type": "http", "scheme": "bearer"},
    "Basic": {"type": "http", "scheme": "basic", "description": "The password is the key. The user name is ignored."},
}
KEYED_FAILURES = (401, 503)
TITLES = {
    400: "The request was rejected",
    401: "The key is missing or invalid",
    403: "The key does not permit this request",
    404: "Not found",
    408: "The body did not arrive in time",
    409: "The request conflicts with earlier requests",
    410: "The session or attempt has ended",
    413: "The body is too large",
    415: "The body is not plain JSON",
    422: "A field is invalid; `fields` names the field",
    429: "The key has reached its quota of rollouts in flight",
    500: "The environment, a rubric or the server failed",
    502: "The policy failed",
    503: "No key is configured, or the server is full",
    504: "The rollout's deadline passed",
}

ANSWER_HEADERS = {
    401: {"WWW-Authenticate": "How to send the key."},
    429: {"Retry-After": "After how many seconds to retry."},
    503: {"Retry-After": "After how many seconds to retry. Absent if no key is configured."},
}
LOCATION = {"Location": "The path of the rollout."}
REPLAYED_HEADERS = {"Idempotent-Replayed": "`true` if this is the response to an earlier request."}
STREAMED_HEADERS = {**REPLAYED_HEADERS, **LOCATION}
ACCEPTED_HEADERS = {
    **LOCATION,
    "Preference-Applied": "`respond-async` if the request asked for it.",
    "Retry-After": "After how many seconds to retry.",
}


STREAM = (
    "The result. With text/event-stream, the response is a stream of server-sent events with `id`, `event` and `data`: "
    "the rollout's events, and finally `result` with a RolloutResponse or `failure` with an ErrorEnvelope."
)


@dataclass(frozen=True, slots=True)
class RouteContext:
    """The server's objects that the function of a route receives."""

    service: Service
    shared_rollouts: SharedRollouts
    metrics: Metrics
    settings: Settings
    description: Description
    exposure: Exposure


Handler = Callable[[RouteContext, Request], Awaitable[EncodedResponse | EventStream]]


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """A route. FastAPI uses the models only to document the route in OpenAPI.

    Attributes:
        path: Path template.
        method: HTTP method. GET of "/" also handles HEAD.
        answer: Function that handles a request.
        parameters: Query, path and header parameters, as OpenAPI objects.
        streams: Whether the response may be an event stream.
        body_required: Whether an empty body is rejected.
        accepted_model: Model of a 202 response.
        other_media_types: Additional media types that clients can request with `Accept`.
        headers: Headers of a 200 response, with their descriptions.
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
    """A protocol's route at a path that the kit also uses. It is tried first and must not match the kit's requests."""

    path: str


class DirectRoute(APIRoute):
    """A route that FastAPI documents, and whose function is called without FastAPI's dependencies and validation."""

    direct: ASGIApp
    allowed: list[str]
    request_model: type[pydantic.BaseModel] | None

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["method"] in (self.methods or ()):
            await self.direct(scope, receive, send)
        else:
            await ERRORS.method_not_allowed(self.allowed)(scope, receive, send)


def direct_routes(specs: Sequence[RouteSpec], context: RouteContext) -> list[DirectRoute]:
    """Return the routes for FastAPI's router."""
    routes = [_direct_route(spec, context) for spec in specs]
    for route in routes:  # several routes may have the same path and different methods
        route.allowed = [verb for other in routes if other.path == route.path for verb in other.methods or ()]
    return routes


def direct_paths(routes: Sequence[BaseRoute], environments: Iterable[str]) -> dict[tuple[str, str], ASGIApp]:
    """Return a mapping from method and path to the application of the route.

    The mapping contains the routes whose path has no parameter except the name of an environment. A look-up is faster
    than the router, which compares a path with each route. Routes that depend on more than method and path are left to
    the router.
    """
    # the name of an environment is the only parameter whose values are known
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
                # an earlier route may also match the path
                if "{" not in path and _chosen(routes, method, path) is route:
                    found[method, path] = answer
    return found


def _chosen(routes: Sequence[BaseRoute], method: str, path: str) -> BaseRoute | None:
    """Return the route for all requests with this method and path.

    Return None if no route matches, or if the choice also depends on headers.
    """
    scope = {"type": "http", "method": method, "path": path, "headers": [], "root_path": ""}
    for route in routes:
        if isinstance(route, SharedPathRoute) and route.path == path:
            return None
        if route.matches(scope)[0] is Match.FULL:
            return route
    return None


def _with_environment(answer: ASGIApp, name: str) -> ASGIApp:
    """Return an application that passes the environment's name to `answer`, as the router would do."""

    async def named(scope: Scope, receive: Receive, send: Send) -> None:
        scope["path_params"] = {"environment": name}
        await answer(scope, receive, send)

    return named


def _direct_route(spec: RouteSpec, context: RouteContext) -> DirectRoute:
    # FastAPI reads the signature of this function, because the signatures of the kit's functions differ
    async def documented(_: Request) -> Response:
        raise AssertionError("unreachable: DirectRoute.handle calls the function of the route")

    # load balancers send HEAD / as a health check
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
    """Return the ASGI application of a route, which adds error handling, metrics and logging to its function."""
    # FastAPI's validation is skipped, because a small rollout should take less than a millisecond of CPU time, and
    # because with a single strict JSON parser the kit and the author cannot read a body differently
    answer_it = spec.answer
    where = spec.path

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        answer: EncodedResponse | EventStream
        try:
            answer = await answer_it(context, Request(scope, receive))
        # not an error, because trainers abandon many rollouts
        except ClientGone:
            log.info("client gone route=%s", where)
            context.metrics.answered(spec.method, where, CLIENT_GONE)
            return
        except Exception as error:
            if isinstance(error, StoreError):
                context.metrics.store_failed()
            answer = error_answer(error, where=where)
        # before the response is sent, so that a slow client does not delay the metrics
        context.metrics.answered(spec.method, where, answer.status)
        # a rollout counts in its key's quota until the client has read the response, which limits the memory of
        # responses
        with context.service.admission.unread(scope.get(LABEL), answer.rollout_id, peer_of(scope)):
            await answer(scope, receive, send)

    return run


def parameter(name: str, where: str, description: str, **schema: Any) -> dict[str, Any]:
    """Return the OpenAPI object of an optional parameter. `where` is "query" or "header"."""
    return {"name": name, "in": where, "required": False, "description": description, "schema": schema}


def documentation(spec: RouteSpec) -> dict[str, Any]:
    """Return the keyword arguments with which FastAPI documents a route."""
    failures = sorted({*spec.failures, *(KEYED_FAILURES if spec.keyed else ())})
    responses: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorEnvelope, "description": TITLES[status]} for status in failures
    }
    if spec.response_model is not None:
        responses[200] = {"model": spec.response_model, "description": "Answered"}
        if spec.streams:
            # no schema, because OpenAPI 3.1 cannot describe the items of a stream, and some tools apply `schema` to
            # each item
            responses[200] |= {"content": {"text/event-stream": {}}, "description": STREAM}
            if spec.method == "GET":  # only a resumed stream can already be complete
                responses[204] = {"description": "The stream has ended, and the client has received all events"}
    else:
        kinds: dict[str, Any] = {name: {} for name in (spec.media_type, *spec.other_media_types)}
        responses[200] = {"content": kinds, "description": "Answered"}
    if spec.accepted_model is not None:
        responses[202] = {"model": spec.accepted_model, "description": "Running; `Location` is the path of the rollout"}
    headers: dict[int, dict[str, str]] = dict(ANSWER_HEADERS)
    if spec.headers:
        headers[200] = dict(spec.headers)
    if spec.streams:
        headers[200] = STREAMED_HEADERS
        for failed in (500, 502, 503, 504):  # a repeated request also receives a stored failure
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
    """Code that connects a client to a served app.

    Attributes:
        title: Name and versions of the client.
        language: `python`, `sh`, `toml` or `json`.
        text: The code. It reads the server's key from the variable ENVIRONMENT_API_KEY and never contains the key.
    """

    title: str
    language: str
    text: str


@dataclass(frozen=True, slots=True)
class WireProtocol:
    """An additional wire protocol of the server. A package in `interop` exports it as `PROTOCOL`.

    Attributes:
        name: Name of the package, which is the value for `--protocols`.
        summary: Short description of the protocol, with its versions.
        routes: Function that returns the routes, all of which require a key.
        clients: Function that returns code for users to copy. Its arguments are the server's address without a trailing
            slash, and the names of the environments, starting with the default environment.
    """

    name: str
    summary: str
    # routes, not an application, so that they share the OpenAPI document and the key check
    routes: Callable[[RouteContext], Sequence[BaseRoute]]
    clients: Callable[[str, Sequence[str]], Sequence[ClientLines]]


def invalid_field(
    loc: tuple[str, str], message: str, *, code: str = "invalid_request", kind: str = "value_error", hint: str = ""
) -> RequestError:
    """Return the error for an invalid field at `loc`. For a query parameter, the message starts with its name."""
    whole = f"Query parameter {loc[1]} {message}." if loc[0] == "query" else message
    return RequestError(whole, fields=(FieldProblem(loc, message, kind),), code=code, hint=hint)


def invalid_request(error: pydantic.ValidationError, body: Any) -> RequestError:
    """Return the error for a body that does not match its model.

    `body` is the parsed body. It is used to tell field names from tags of unions in pydantic's error locations.
    """
    fields = body_problems(error, body)
    # at most five, because every field of a body may be invalid
    named = ", ".join(".".join(str(short_part(part)) for part in problem.loc[1:]) for problem in fields[:5])
    return RequestError(
        f"The request body is invalid: {named}.",
        fields=fields,
        hint="`fields` describes what each field must be; the models are in /openapi.json.",
    )


def parsed(model: type[M], body: Any) -> M:
    """Return the body as an instance of `model`. Raises RequestError if the body does not match the model."""
    try:
        return model.model_validate(body)
    except pydantic.ValidationError as error:
        raise invalid_request(error, body) from None
