"""The server of a task app as a FastAPI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from taskapp_kit.config import Settings
from taskapp_kit.declare.app import Exposure
from taskapp_kit.errors import KitError
from taskapp_kit.net.auth import ApiKeyMiddleware, SiteRules
from taskapp_kit.records.protocols import IdempotencyStore
from taskapp_kit.rollout.describe import Description
from taskapp_kit.rollout.retention import retention_of
from taskapp_kit.rollout.service import Service
from taskapp_kit.rollout.shared_rollouts import SharedRollouts
from taskapp_kit.serve import openapi
from taskapp_kit.serve.auth import authenticator, open_paths
from taskapp_kit.serve.docs_page import openapi_document, page
from taskapp_kit.serve.errors import ERRORS, error_answer
from taskapp_kit.serve.keys import Keys
from taskapp_kit.serve.route import RouteContext
from taskapp_kit.serve.routes import DEBUG_ROUTES, ROUTES
from taskapp_kit.serve.routes.session_socket import socket_route
from taskapp_kit.serve.routing import SharedPathRoute, direct_paths, direct_routes
from taskapp_kit.serve.telemetry.observers import Observers
from taskapp_kit.serve.wire_protocol import WireProtocol

CORS_HEADERS = (
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "Last-Event-ID",
    "Prefer",
    "X-API-Key",
    "X-API-Keys",
)


class GatedApp(FastAPI):
    """FastAPI behind a gate: authentication (and CORS) run before all of its middleware.

    gate: handles each request first. direct: routes by method and path; they are called directly, everything else goes
    through FastAPI's routing.
    """

    gate: ASGIApp | None = None
    direct: Mapping[tuple[str, str], ASGIApp] = MappingProxyType({})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, websocket or lifespan."""
        await (self.gate or self.routed)(scope, receive, send)

    async def routed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request that passed the gate."""
        direct = self.direct.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if direct is not None and not scope.get("root_path"):
            await direct(scope, receive, send)
            return
        await super().__call__(scope, receive, send)


def create_app(
    service: Service,
    settings: Settings,
    *,
    protocols: Sequence[WireProtocol] = (),
    exposure: Exposure = "public",
    coordinator: IdempotencyStore | None = None,
) -> GatedApp:
    """Return the application that serves `service`. Raises ConfigError: the key file cannot be read.

    protocols: further protocols in which it can be driven. coordinator: where idempotency records are stored, of rollouts
    that are repeated or fetched later; default: the service's store. exposure: with `local`, `/docs` and `/openapi.json`
    need no key.

    Every environment's `setup_worker` runs before the server answers: a server that cannot run episodes does not start.
    The service is closed when the server stops. Routes that are added to the application (`include_router`, `mount`)
    require the same key.
    """

    shared_rollouts = SharedRollouts(service, coordinator)
    observers = Observers(service, settings)
    retention = retention_of(service, settings.store_keep)

    async def drain(grace_seconds: float) -> None:
        await service.drain(grace_seconds)
        await shared_rollouts.settled()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            await asyncio.to_thread(service.prepare)
            await service.start()
            observers.start()
            if retention is not None:
                retention.start()
            yield
        finally:
            await drain(settings.grace_seconds)
            await shared_rollouts.close()
            if retention is not None:
                await retention.close()
            await service.close()
            await observers.close()

    app = GatedApp(
        title=service.spec.name,
        version=service.spec.version,
        description=service.spec.description,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        # FastAPI exports no telemetry of its own; versions without this argument ignore it
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.service = service
    app.state.drain = drain
    app.state.metrics = observers.metrics
    context = RouteContext(
        service, shared_rollouts, observers.metrics, settings, _description(service, settings), exposure
    )
    routes: list[BaseRoute] = [*direct_routes(ROUTES + (DEBUG_ROUTES if settings.debug_env else ()), context)]
    routes.append(socket_route(context))
    for protocol in protocols:
        routes += protocol.routes(context)
    routes.sort(key=lambda route: not isinstance(route, SharedPathRoute))
    app.router.routes.extend(routes)
    app.add_route("/openapi.json", openapi_document, include_in_schema=False)
    app.add_route("/docs", page, include_in_schema=False)
    openapi.install(app, service.spec)

    async def handle(request: Request, error: Exception) -> Response:
        answer = error_answer(error)
        observers.metrics.answered(request.method, "(none)", answer.status)
        return answer  # type: ignore[return-value]  # an EncodedResponse is an ASGI application, which is all it needs

    for kind in (HTTPException, RequestValidationError, KitError, Exception):
        app.add_exception_handler(kind, handle)
    app.direct = direct_paths(routes, service.spec.environments)
    app.state.keys = keys = Keys.of(settings)
    local, hosts = exposure == "local", (settings.host, *settings.hosts)
    service.sessions.is_valid = lambda caller: caller.key_label is None or keys.has_label(caller.key_label)
    app.gate = ApiKeyMiddleware(
        app.routed,
        authenticator(keys),
        is_open=open_paths(documents=local),
        sites=SiteRules(hosts, local=local, any_host=not (local or settings.hosts), origins=settings.cors_origins),
        errors=ERRORS,
        on_refusal=observers.metrics.count_key_refusal,
    )
    if settings.cors_origins:
        # outermost: browsers send preflight requests without a key
        app.gate = CORSMiddleware(
            app.gate,
            allow_origins=list(settings.cors_origins),
            allow_methods=["DELETE", "GET", "POST"],
            allow_headers=list(CORS_HEADERS),
            expose_headers=["Idempotent-Replayed", "Location", "Retry-After"],
            allow_credentials=False,
        )
    return app


def _description(service: Service, settings: Settings) -> Description:
    return Description(
        service.spec,
        max_time_seconds=service.settings.max_time_seconds,
        max_concurrent=service.settings.max_concurrent,
        max_body_bytes=settings.max_body_bytes,
    )
