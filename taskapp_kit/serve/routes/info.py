"""`/info`: the app as a whole."""

from __future__ import annotations

from starlette.requests import Request

from taskapp_kit.net.response import EncodedResponse, json_answer
from taskapp_kit.serve.openapi_models import Info
from taskapp_kit.serve.route import RouteContext, RouteSpec


async def info(context: RouteContext, _: Request) -> EncodedResponse:
    """The app, its data sets, rubrics, reward formula and limits."""
    return json_answer(context.description.info())


ROUTE = RouteSpec("/info", "GET", info, "What is served here?", response_model=Info)
