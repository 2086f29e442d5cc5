"""`/`: the only open route. It confirms that a server runs, and names the app that it serves."""

from __future__ import annotations

from starlette.requests import Request

from taskapp_kit.net.response import EncodedResponse, json_answer
from taskapp_kit.serve.openapi_models import Root
from taskapp_kit.serve.route import RouteContext, RouteSpec


async def root(context: RouteContext, request: Request) -> EncodedResponse:
    """Needs no key. HEAD gives the headers of `{"status":"ok"}`."""
    if request.method == "HEAD":
        return json_answer({"status": "ok"})
    return json_answer({"status": "ok", "service": context.service.spec.name})


ROUTE = RouteSpec("/", "GET", root, "Is a server there?", response_model=Root, keyed=False)
