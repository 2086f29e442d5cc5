"""Calls route functions directly: FastAPI only documents the routes, and neither parses nor validates."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import pydantic
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from taskapp_kit.errors import StoreError
from taskapp_kit.net.error_response import ClientGone
from taskapp_kit.net.response import EncodedResponse, peer_of
from taskapp_kit.serve.auth import LABEL
from taskapp_kit.serve.errors import ERRORS, error_answer
from taskapp_kit.serve.openapi import documentation
from taskapp_kit.serve.rollout_stream import EventStream
from taskapp_kit.serve.route import RouteContext, RouteSpec

log = logging.getLogger("taskapp_kit.serve")

ENVIRONMENT = "{environment}"
"""The parameter of a path that an environment's name stands for."""
CLIENT_GONE = 499
"""The status in the metrics of a request whose client closed the connection first; it is never sent."""


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
    async def documented(_: Request) -> Response:
        raise AssertionError("a direct route is handled by its own function")

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
    answer_it = spec.answer
    where = spec.path

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        answer: EncodedResponse | EventStream
        try:
            answer = await answer_it(context, Request(scope, receive))
        except ClientGone:
            log.info("client gone route=%s", where)
            context.metrics.answered(spec.method, where, CLIENT_GONE)
            return
        except Exception as error:
            if isinstance(error, StoreError):
                context.metrics.store_failed()
            answer = error_answer(error, where=where)
        context.metrics.answered(spec.method, where, answer.status)
        with context.service.admission.unread(scope.get(LABEL), answer.rollout_id, peer_of(scope)):
            await answer(scope, receive, send)

    return run
