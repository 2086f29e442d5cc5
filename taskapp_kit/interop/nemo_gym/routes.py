"""The routes of a resources server, and the schemas of their bodies. `episodes.py` parses the bodies.

A cookie contains the session's id. Every response sets the cookie, because agents only keep the cookies of the last
response. A tool returns text for the model. `verify` returns the fields of the request, the reward and the reward's
parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, StrictStr
from starlette.requests import Request
from starlette.routing import BaseRoute

from taskapp_kit.declare.specs import EnvironmentSpec
from taskapp_kit.errors import RequestError, RolloutFailed, SessionError
from taskapp_kit.interop.nemo_gym.episodes import ON_FAILURE, PROTOCOL, NemoEpisodes, masked
from taskapp_kit.interop.protocols import ENVIRONMENT_PARAMETERS, READING, body_of, environment_of_path
from taskapp_kit.net.response import EncodedResponse, Headers, json_answer
from taskapp_kit.serve.auth import caller_of
from taskapp_kit.serve.route import RouteContext, RouteSpec, direct_routes
from taskapp_kit.wire.rollout import JsonDict, Seed, Split


class NemoBody(BaseModel):
    """An object. Undocumented fields belong to the agent and are ignored."""

    model_config = ConfigDict(extra="allow")


class NemoRow(NemoBody):
    """A row of `taskapp export tasks --format nemo`, which identifies the episode.

    `config` is an object or a JSON string.
    """

    seed: Seed
    split: Split | None = None
    config: Any = None
    environment: StrictStr | None = None
    output_mode: Literal["tool_calls"] = "tool_calls"
    on_failure: Literal["mask", "error"] = "mask"


class NemoSeeded(BaseModel):
    """The episode has begun. If the episode failed, `verify` reports the failure, and the id may be absent."""

    rollout_id: str | None


class NemoVerified(NemoBody):
    """The fields of the request, the reward and its parts. The sample of a failed episode is marked as masked."""

    reward: float
    taskapp: JsonDict


COOKIE = "taskapp_session"
PLAYING = (*READING, 409, 429, 500, 502, 504)
SESSION = {"name": COOKIE, "in": "cookie", "required": True, "schema": {"type": "string"}}
SENT = {"Set-Cookie": "The session's id. Send it with the next requests."}
TOOL = {"name": "tool", "in": "path", "required": True, "schema": {"type": "string"}}
TEXT: Headers = [
    (b"content-type", b"text/plain; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
]


def nemo_routes(context: RouteContext) -> Sequence[BaseRoute]:
    """Return the routes of all environments."""
    handlers = NemoHandlers(context)
    path, of_session = f"/{PROTOCOL}/{{environment}}", (*ENVIRONMENT_PARAMETERS, SESSION)
    begin = RouteSpec(f"{path}/seed_session", "POST", handlers.nemo_seed_session, "NeMo Gym: begin an episode")
    end = RouteSpec(f"{path}/verify", "POST", handlers.nemo_verify, "NeMo Gym: end the episode and score it")
    mode = RouteSpec(
        f"{path}/reverify_mode", "GET", handlers.nemo_reverify_mode, "NeMo Gym: whether a response can be scored again"
    )
    act = RouteSpec(f"{path}/{{tool}}", "POST", handlers.nemo_tool, "NeMo Gym: do one action")
    begins = replace(begin, request_model=NemoRow, response_model=NemoSeeded, failures=(*READING, 429, 500))
    ends = replace(end, request_model=NemoBody, response_model=NemoVerified, failures=PLAYING, parameters=of_session)
    acts = replace(
        act, request_model=NemoBody, media_type="text/plain", failures=PLAYING, parameters=(*of_session, TOOL)
    )
    specs = [
        replace(begins, headers=SENT, parameters=ENVIRONMENT_PARAMETERS),
        replace(ends, headers=SENT),
        replace(mode, response_model=Literal["unsupported"], failures=(404,), parameters=ENVIRONMENT_PARAMETERS),
        replace(acts, headers=SENT),
    ]
    return direct_routes(specs, context)


class NemoHandlers:
    """The handlers of a server's routes. Their docstrings appear in the OpenAPI document."""

    def __init__(self, context: RouteContext) -> None:
        self._episodes = NemoEpisodes(context)

    async def nemo_seed_session(self, context: RouteContext, request: Request) -> EncodedResponse:
        """Begins the episode of the row in the body."""
        environment = _environment(context, request)
        session = await self._episodes.seed(environment, await body_of(context, request), caller_of(request.scope))
        return json_answer({"rollout_id": session.rollout_id}, headers=_cookie(session.session_id))

    async def nemo_verify(self, context: RouteContext, request: Request) -> EncodedResponse:
        """Ends and scores the episode.

        If the episode fails or the reward is undefined, the sample is marked as masked.
        """
        environment = _environment(context, request)
        session_id = _session_id(request)
        body = await body_of(context, request)
        try:
            verified = await self._episodes.verify(session_id, environment, caller_of(request.scope), body)
        except RolloutFailed as failed:
            if body.get(ON_FAILURE) == "error":
                raise
            verified = masked(body, failed.failure.code, failed.message, failed.rollout_id)
        except SessionError as error:
            if error.code != "session_not_found" or body.get(ON_FAILURE) == "error":
                raise
            verified = masked(body, error.code, error.message, "")
        return json_answer({**body, **verified}, headers=_cookie(session_id))

    async def nemo_reverify_mode(self, context: RouteContext, request: Request) -> EncodedResponse:
        """Reports that stored responses cannot be verified again, because the episode would have to be replayed."""
        _environment(context, request)
        return json_answer("unsupported")

    async def nemo_tool(self, context: RouteContext, request: Request) -> EncodedResponse:
        """Runs an action. The body contains the arguments, and the response is text for the model."""
        environment = _environment(context, request)
        session = self._episodes.find(_session_id(request), environment, caller_of(request.scope))
        works, words = await self._episodes.call(session, request.path_params["tool"], await body_of(context, request))
        return EncodedResponse(200 if works else 500, words.encode(), [*TEXT, *_cookie(session.session_id)])


def _environment(context: RouteContext, request: Request) -> EnvironmentSpec:
    return environment_of_path(context.service.spec, request.path_params["environment"])


def _session_id(request: Request) -> str:
    session_id = request.cookies.get(COOKIE)
    if session_id is None:
        raise RequestError(
            f"The request has no cookie {COOKIE}.", hint="Call /seed_session first, and send its cookie."
        )
    return session_id


def _cookie(session_id: str) -> Headers:
    return [(b"set-cookie", f"{COOKIE}={session_id}; Path=/; HttpOnly; SameSite=Strict".encode())]
