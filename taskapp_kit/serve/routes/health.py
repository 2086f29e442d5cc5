"""`/health`: answers within milliseconds under any load."""

from __future__ import annotations

from starlette.requests import Request

from taskapp_kit.net.response import EncodedResponse, json_answer
from taskapp_kit.serve.openapi_models import Health
from taskapp_kit.serve.route import RouteContext, RouteSpec


async def health(context: RouteContext, _: Request) -> EncodedResponse:
    """How many rollouts run, how many may."""
    return json_answer({**context.service.health(), "auth": {"required": True}})


ROUTE = RouteSpec("/health", "GET", health, "Is the server well?", response_model=Health)
