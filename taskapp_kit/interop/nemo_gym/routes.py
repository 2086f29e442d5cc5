"""The routes of a resources server. The session's id is in a cookie, which every answer sets: agents keep the last answer's.

An answer of a tool is text for the model. `verify` answers with the request, the reward, and what it was made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from starlette.requests import Request
from starlette.routing import BaseRoute

from taskapp_kit.declare.specs import EnvironmentSpec
from taskapp_kit.errors import RequestError, RolloutFailed, SessionError
from taskapp_kit.interop.nemo_gym.episodes import ON_FAILURE, PROTOCOL, NemoEpisodes, masked
from taskapp_kit.interop.nemo_gym.models import NemoBody, NemoRow, NemoSeeded, NemoVerified
from taskapp_kit.net.body import read_json
from taskapp_kit.net.response import EncodedResponse, Headers, json_answer
from taskapp_kit.serve.auth import caller_of
from taskapp_kit.serve.route import RouteContext, RouteSpec
from taskapp_kit.serve.routing import direct_routes

COOKIE = "taskapp_session"
READING = (404, 408, 413, 415, 422)
PLAYING = (*READING, 409, 429, 500, 502, 504)
SESSION = {"name": COOKIE, "in": "cookie", "required": True, "schema": {"type": "string"}}
SENT = {"Set-Cookie": "The session, for the next requests."}
PARAMETERS = ({"name": "environment", "in": "path", "required": True, "schema": {"type": "string"}},)
TOOL = {"name": "tool", "in": "path", "required": True, "schema": {"type": "string"}}
TEXT: Headers = [
    (b"content-type", b"text/plain; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
]


def nemo_routes(context: RouteContext) -> Sequence[BaseRoute]:
    """Return the routes of all environments."""
    episodes = NemoEpisodes(context)

    def environment_of(request: Request) -> EnvironmentSpec:
        return episodes.environment(request.path_params["environment"])

    async def body_of(request: Request) -> dict[str, Any]:
        return await read_json(request.scope, request.receive, context.settings.max_body_bytes)

    def cookie_of(request: Request) -> str:
        session_id = request.cookies.get(COOKIE)
        if session_id is None:
            raise RequestError(
                f"The request has no cookie {COOKIE}.", hint="Call /seed_session first, and send its cookie back."
            )
        return session_id

    async def nemo_seed_session(_: RouteContext, request: Request) -> EncodedResponse:
        """Begins the episode that the row in the body names."""
        environment = environment_of(request)
        session = await episodes.seed(environment, await body_of(request), caller_of(request.scope))
        return json_answer({"rollout_id": session.rollout_id}, headers=_cookie(session.session_id))

    async def nemo_verify(_: RouteContext, request: Request) -> EncodedResponse:
        """Ends and scores the episode. One that failed, or whose reward is undefined, is marked to be masked."""
        environment = environment_of(request)
        session_id = cookie_of(request)
        body = await body_of(request)
        try:
            found = await episodes.verify(session_id, environment, caller_of(request.scope), body)
        except RolloutFailed as failed:
            if body.get(ON_FAILURE) == "error":
                raise
            found = masked(body, failed.failure.code, failed.message, failed.rollout_id)
        except SessionError as error:
            if error.code != "session_not_found" or body.get(ON_FAILURE) == "error":
                raise
            found = masked(body, error.code, error.message, "")
        return json_answer({**body, **found}, headers=_cookie(session_id))

    async def nemo_reverify_mode(_: RouteContext, request: Request) -> EncodedResponse:
        """Answers that a stored response cannot be verified again: the episode would have to be played."""
        environment_of(request)
        return json_answer("unsupported")

    async def nemo_tool(_: RouteContext, request: Request) -> EncodedResponse:
        """Does one action; the body has its arguments, the answer is what the model reads."""
        environment = environment_of(request)
        session = episodes.find(cookie_of(request), environment, caller_of(request.scope))
        works, words = await episodes.call(session, request.path_params["tool"], await body_of(request))
        return EncodedResponse(200 if works else 500, words.encode(), [*TEXT, *_cookie(session.session_id)])

    of_session = (*PARAMETERS, SESSION)
    specs = [
        RouteSpec(
            f"/{PROTOCOL}/{{environment}}/seed_session", "POST", nemo_seed_session, "NeMo Gym: begin an episode",
            request_model=NemoRow, response_model=NemoSeeded, failures=(*READING, 429, 500), parameters=PARAMETERS, headers=SENT,
        ),
        RouteSpec(
            f"/{PROTOCOL}/{{environment}}/verify", "POST", nemo_verify, "NeMo Gym: end the episode and score it",
            request_model=NemoBody, response_model=NemoVerified, failures=PLAYING, parameters=of_session, headers=SENT,
        ),
        RouteSpec(
            f"/{PROTOCOL}/{{environment}}/reverify_mode", "GET", nemo_reverify_mode, "NeMo Gym: whether it can be scored again",
            response_model=Literal["unsupported"], failures=(404,), parameters=PARAMETERS,
        ),
        RouteSpec(
            f"/{PROTOCOL}/{{environment}}/{{tool}}", "POST", nemo_tool, "NeMo Gym: do one action",
            request_model=NemoBody, media_type="text/plain", failures=PLAYING, parameters=(*of_session, TOOL), headers=SENT,
        ),
    ]  # fmt: skip
    return direct_routes(specs, context)


def _cookie(session_id: str) -> Headers:
    return [(b"set-cookie", f"{COOKIE}={session_id}; Path=/; HttpOnly; SameSite=Strict".encode())]
