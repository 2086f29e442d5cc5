"""`/debug/env`: which variables are set, never their values. Off unless TASKAPP_DEBUG_ENV is on."""

from __future__ import annotations

from starlette.requests import Request

from taskapp_kit.net.response import EncodedResponse, json_answer
from taskapp_kit.serve.openapi_models import DebugEnv
from taskapp_kit.serve.route import RouteContext, RouteSpec

VARIABLES = ("OPENAI_API_KEY", "GROQ_API_KEY")


async def debug_env(context: RouteContext, _: Request) -> EncodedResponse:
    """Booleans only."""
    settings = context.settings
    found = {"has_ENVIRONMENT_API_KEY": bool(settings.environment_api_key)}
    found.update({f"has_{name}": settings.variable(name) is not None for name in VARIABLES})
    return json_answer(found)


ROUTE = RouteSpec("/debug/env", "GET", debug_env, "Which variables are set?", response_model=DebugEnv)
