"""`/metrics`: the server's own numbers, for Prometheus."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from taskapp_kit.net.response import EncodedResponse
from taskapp_kit.serve.connection_limits import CONNECTIONS, Connections
from taskapp_kit.serve.route import RouteContext, RouteSpec
from taskapp_kit.serve.telemetry.metrics import render


async def metrics(context: RouteContext, request: Request) -> EncodedResponse:
    """Counters and gauges since the server's start. Text format 0.0.4, or OpenMetrics when `Accept` names it."""
    connections = request.scope.get(CONNECTIONS)
    snapshot = context.metrics.snapshot(
        (len(connections), dict(connections.ended)) if isinstance(connections, Connections) else None
    )
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


ROUTE = RouteSpec(
    "/metrics",
    "GET",
    metrics,
    "The server's numbers, for Prometheus",
    media_type="text/plain",
    other_media_types=("application/openmetrics-text",),
)
