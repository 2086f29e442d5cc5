"""The routes about the server itself: `/`, `/health`, `/info`, `/metrics`, `/done` and `/debug/env`."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from taskapp_kit.net.response import EncodedResponse, json_answer
from taskapp_kit.serve.connection_limits import CONNECTIONS, Connections
from taskapp_kit.serve.openapi_models import DebugEnv, Done, Health, Info, Root
from taskapp_kit.serve.route import RouteContext, RouteSpec
from taskapp_kit.serve.telemetry.metrics import render

VARIABLES = ("OPENAI_API_KEY", "GROQ_API_KEY")
"""The variables that `/debug/env` reports in addition to ENVIRONMENT_API_KEY."""


async def root(context: RouteContext, request: Request) -> EncodedResponse:
    """Return `{"status":"ok"}`. This route requires no key. HEAD returns only the headers."""
    if request.method == "HEAD":
        return json_answer({"status": "ok"})
    return json_answer({"status": "ok", "service": context.service.spec.name})


async def health(context: RouteContext, _: Request) -> EncodedResponse:
    """Return the number of running rollouts, its maximum, and the state of the store, workers and sessions."""
    return json_answer({**context.service.health(), "auth": {"required": True}})


async def info(context: RouteContext, _: Request) -> EncodedResponse:
    """Return the app, its data sets, rubrics, reward formula and limits."""
    return json_answer(context.description.info())


async def done(context: RouteContext, _: Request) -> EncodedResponse:
    """Acknowledge that a trainer has finished. The body is ignored."""
    # nothing to release, because the rollouts of a trainer do not share resources
    return json_answer({"ok": True, "service": context.service.spec.name})


async def debug_env(context: RouteContext, _: Request) -> EncodedResponse:
    """Return whether variables are set, without their values."""
    settings = context.settings
    found = {"has_ENVIRONMENT_API_KEY": bool(settings.environment_api_key)}
    found.update({f"has_{name}": settings.variable(name) is not None for name in VARIABLES})
    return json_answer(found)


async def metrics(context: RouteContext, request: Request) -> EncodedResponse:
    """Return all metrics since the start of the server.

    The format is Prometheus' text format 0.0.4, or OpenMetrics if `Accept` requests it.
    """
    connections = request.scope.get(CONNECTIONS)
    snapshot = context.metrics.snapshot(
        (len(connections), dict(connections.ended)) if isinstance(connections, Connections) else None
    )
    # in a thread, because the first scrape imports prometheus_client, and rendering takes milliseconds
    body, content_type = await asyncio.to_thread(render, snapshot, request.headers.get("accept", ""))
    return EncodedResponse(
        200,
        body,
        [
            (b"content-type", content_type.encode("latin-1")),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
        ],
    )


ROOT = RouteSpec("/", "GET", root, "Check that the server is running", response_model=Root, keyed=False)
HEALTH = RouteSpec("/health", "GET", health, "Check the server's health", response_model=Health)
INFO = RouteSpec("/info", "GET", info, "Describe the app", response_model=Info)
DONE = RouteSpec("/done", "POST", done, "Report that the trainer has finished", response_model=Done)
DEBUG_ENV = RouteSpec("/debug/env", "GET", debug_env, "Check which variables are set", response_model=DebugEnv)
METRICS = RouteSpec(
    "/metrics",
    "GET",
    metrics,
    "Return the server's metrics for Prometheus",
    media_type="text/plain",
    other_media_types=("application/openmetrics-text",),
)
