"""The server of a task app as a FastAPI application."""

from __future__ import annotations

import asyncio
import logging
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
from taskapp_kit.logs import LogMessage
from taskapp_kit.net.auth import ApiKeyMiddleware, SiteRules
from taskapp_kit.records.protocols import IdempotencyStore
from taskapp_kit.records.rollout import Rollout
from taskapp_kit.rollout.admission import RunningRollout
from taskapp_kit.rollout.describe import Description
from taskapp_kit.rollout.retention import retention_of
from taskapp_kit.rollout.service import Service
from taskapp_kit.rollout.shared_rollouts import SharedRollouts
from taskapp_kit.serve.auth import Keys, authenticator, open_paths
from taskapp_kit.serve.errors import ERRORS, error_answer
from taskapp_kit.serve.event_loop_watchdog import Watchdog
from taskapp_kit.serve.openapi import install, openapi_document, page
from taskapp_kit.serve.route import RouteContext, SharedPathRoute, WireProtocol, direct_paths, direct_routes
from taskapp_kit.serve.routes import DEBUG_ROUTES, ROUTES
from taskapp_kit.serve.routes.session_socket import socket_route
from taskapp_kit.serve.telemetry.metrics import Metrics
from taskapp_kit.serve.telemetry.tracing import tracing_of

log = logging.getLogger("taskapp_kit.serve")

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
    """A FastAPI application behind a gate, so that authentication and CORS run before FastAPI's middleware.

    Attributes:
        gate: Application that handles each request first.
        direct: Routes that are called directly, by method and path. All other requests use FastAPI's routing.
    """

    gate: ASGIApp | None = None
    direct: Mapping[tuple[str, str], ASGIApp] = MappingProxyType({})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, WebSocket or lifespan."""
        await (self.gate or self.routed)(scope, receive, send)

    async def routed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request that passed the gate."""
        # FastAPI's middleware and router would take longer than the rest of a short request
        direct = self.direct.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        # if the app is mounted, the path starts with a prefix, which only the router removes
        if direct is not None and not scope.get("root_path"):
            await direct(scope, receive, send)
            return
        await super().__call__(scope, receive, send)


class Runtime:
    """The parts of a running server: the service, the rollouts that several requests share, telemetry and retention.

    Attributes:
        metrics: The metrics that `/metrics` returns.
    """

    def __init__(self, service: Service, settings: Settings, coordinator: IdempotencyStore | None) -> None:
        self.service = service
        self.shared_rollouts = SharedRollouts(service, coordinator)
        self.metrics = Metrics(service.spec.environments, service.health)
        self._watchdog = self.metrics.loop = Watchdog()
        self._tracing = tracing_of(settings, service.spec.name)
        self._retention = retention_of(service, settings.store_keep)
        self._grace_seconds = settings.grace_seconds
        # watchers run once for every ended rollout, also in worker processes; spans are built from recorded times
        service.watchers += [log_ended, self.metrics.ended]
        if self._tracing is not None:
            service.watchers.append(self._tracing)

    async def drain(self, grace_seconds: float) -> None:
        """Stop accepting rollouts, and wait at most `grace_seconds` for the running rollouts to end."""
        await self.service.drain(grace_seconds)
        # the result of an ended rollout may not be stored yet for the requests that share it
        await self.shared_rollouts.settled()

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Start the service before the first request, and close it after the last rollout."""
        try:
            # in a thread, so that signals are handled while authors' setup code blocks
            await asyncio.to_thread(self.service.prepare)
            await self.service.start()
            self._watchdog.start()
            if self._retention is not None:
                self._retention.start()
            yield
        finally:
            # `uvicorn_server.run` drains at the signal, but other servers only end the lifespan
            await self.drain(self._grace_seconds)
            # before the service, because ending running rollouts needs its threads and the store
            await self.shared_rollouts.close()
            if self._retention is not None:
                await self._retention.close()
            await self.service.close()
            self._watchdog.stop()
            if self._tracing is not None:  # closing the service also creates spans
                await asyncio.to_thread(self._tracing.close)

    async def handle(self, request: Request, error: Exception) -> Response:
        """Return the response when an author's route raises an exception, or when no route matches the path."""
        answer = error_answer(error)
        self.metrics.answered(request.method, "(none)", answer.status)
        return answer  # type: ignore[return-value]  # an EncodedResponse is an ASGI app


def create_app(
    service: Service,
    settings: Settings,
    *,
    protocols: Sequence[WireProtocol] = (),
    exposure: Exposure = "public",
    coordinator: IdempotencyStore | None = None,
) -> GatedApp:
    """Return the application that serves `service`.

    The `setup_worker` methods of all environments run before the server accepts requests, so a server that cannot run
    episodes does not start. The service is closed when the server stops. Routes that are added to the application with
    `include_router` or `mount` also require an API key.

    Args:
        service: The service to serve.
        settings: The server's settings.
        protocols: Additional wire protocols that the server supports.
        exposure: With "local", `/docs` and `/openapi.json` do not require a key.
        coordinator: Store for the idempotency records, which allow clients to repeat a request or fetch its result later.
            Defaults to the service's store.

    Raises:
        ConfigError: The key file cannot be read.
    """
    runtime = Runtime(service, settings, coordinator)
    app = GatedApp(
        title=service.spec.name,
        version=service.spec.version,
        description=service.spec.description,
        # FastAPI's own page loads scripts from other hosts
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        # a redirect would use the address in the Host header, which the caller chooses
        redirect_slashes=False,
        lifespan=runtime.lifespan,
        # keep FastAPI from exporting its own telemetry; versions without this argument ignore it
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.service, app.state.drain, app.state.metrics = service, runtime.drain, runtime.metrics
    context = RouteContext(
        service, runtime.shared_rollouts, runtime.metrics, settings, _description(service, settings), exposure
    )
    routes: list[BaseRoute] = [*direct_routes(ROUTES + (DEBUG_ROUTES if settings.debug_env else ()), context)]
    routes.append(socket_route(context))
    for protocol in protocols:
        routes += protocol.routes(context)
    # a protocol with a path that the kit also uses recognizes its requests by headers, so it is tried first
    routes.sort(key=lambda route: not isinstance(route, SharedPathRoute))
    app.router.routes.extend(routes)
    app.add_route("/openapi.json", openapi_document, include_in_schema=False)
    app.add_route("/docs", page, include_in_schema=False)
    install(app, service.spec)

    # without Exception, Starlette would send its own error page
    for kind in (HTTPException, RequestValidationError, KitError, Exception):
        app.add_exception_handler(kind, runtime.handle)
    # after sorting, because the order of routes determines which route matches
    app.direct = direct_paths(routes, service.spec.environments)
    app.state.keys = keys = Keys.of(settings)
    # the session of a revoked key must end even if no further request arrives
    service.sessions.is_valid = lambda caller: caller.key_label is None or keys.has_label(caller.key_label)
    app.gate = _gate(app, keys, settings, exposure, runtime.metrics)
    return app


def _gate(app: GatedApp, keys: Keys, settings: Settings, exposure: Exposure, metrics: Metrics) -> ASGIApp:
    """Return the gate, which checks Host, Origin and API key and handles CORS before the application sees a request."""
    local, hosts = exposure == "local", (settings.host, *settings.hosts)
    gate = ApiKeyMiddleware(
        app.routed,
        authenticator(keys),
        is_open=open_paths(documents=local),
        sites=SiteRules(hosts, local=local, any_host=not (local or settings.hosts), origins=settings.cors_origins),
        errors=ERRORS,
        on_refusal=metrics.count_key_refusal,
    )
    if not settings.cors_origins:
        return gate
    # outermost, because browsers send preflight requests without a key
    return CORSMiddleware(
        gate,
        allow_origins=list(settings.cors_origins),
        allow_methods=["DELETE", "GET", "POST"],
        allow_headers=list(CORS_HEADERS),
        expose_headers=["Idempotent-Replayed", "Location", "Retry-After"],
        # safe for any origin, because these routes require a key in a header and accept no cookies
        allow_credentials=False,
    )


def _description(service: Service, settings: Settings) -> Description:
    return Description(
        service.spec,
        max_time_seconds=service.settings.max_time_seconds,
        max_concurrent=service.settings.max_concurrent,
        max_body_bytes=settings.max_body_bytes,
    )


def log_ended(rollout: RunningRollout, result: Rollout) -> None:
    """Log an ended rollout: INFO if it was scored, WARNING if it was cancelled or timed out, ERROR if it failed.

    In the log line, `reward` is None if it is undefined, `seconds` counts from the admission of the rollout, and `key`
    is the label of the caller's key.
    """
    failure = result.failure
    level = logging.INFO
    if failure is not None:
        level = logging.WARNING if failure.boundary in ("timeout", "cancelled") else logging.ERROR
    # formatting a log line takes longer than all other bookkeeping of a short rollout
    if not log.isEnabledFor(level):
        return
    scored = {} if failure is not None else {"reward": result.reward}
    message = LogMessage(
        "rollout" if failure is None else "rollout failed",
        rollout_id=rollout.rollout_id,
        environment=result.environment,
        seed=result.seed,
        steps=result.length,
        status=result.status,
        **scored,
        policy=rollout.plan.policy,
        key=rollout.caller.key_label,
        seconds=round(result.timing.get("total", 0.0), 4),
    )
    if failure is not None:
        message.fields.update(boundary=failure.boundary, code=failure.code, error_id=failure.error_id)
    log.log(level, message)
