"""`/done`: a trainer reports that it has finished. Rollouts share no resources, so there is nothing to release."""

from __future__ import annotations

from starlette.requests import Request

from taskapp_kit.net.response import EncodedResponse, json_answer
from taskapp_kit.serve.openapi_models import Done
from taskapp_kit.serve.route import RouteContext, RouteSpec


async def done(context: RouteContext, _: Request) -> EncodedResponse:
    """The body is not read."""
    return json_answer({"ok": True, "service": context.service.spec.name})


ROUTE = RouteSpec("/done", "POST", done, "The trainer has finished", response_model=Done)
