"""The application of a serving process: one model, protected by an API key, with the routes of the gateway and `models`.

    POST chat/completions, completions, responses, messages, GET models        below /served-here/v1

Conversations are rendered and sampled as in training. Each request is independent, so earlier replies are encoded again
from their text.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from taskapp_kit.errors import Saturated
from taskapp_kit.net.auth import ApiKeyMiddleware, SiteRules, candidates
from taskapp_kit.net.body import read_json, while_connected
from taskapp_kit.net.error_response import ClientGone, ErrorWriter, RequestRefused, openai_error
from taskapp_kit.net.response import EncodedResponse, answer_without_http, json_answer
from taskapp_kit.net.sse import EventStreamResponse
from taskapp_kit.train.gateway.answers import answer
from taskapp_kit.train.gateway.attempt import AnsweredTurn, AttemptSettings, OpenAttempt
from taskapp_kit.train.gateway.call_reader import GatewayCall, Route, read_call
from taskapp_kit.train.gateway.gateway_server import MAX_BODY_BYTES, MAX_BODY_VALUES, ROUTES
from taskapp_kit.train.gateway.pace import Pace
from taskapp_kit.train.rendering.renderer import Renderer
from taskapp_kit.train.turns import Sampler
from taskapp_kit.wire.chat.completion import model_list, read_request
from taskapp_kit.wire.chat.dialect_body import wrong
from taskapp_kit.wire.inference_url import SERVED_HERE

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


MAX_TEMPERATURE = 2.0
LEAST_TEMPERATURE = 0.01
"""A lower temperature is treated as 0, because dividing logits by it would produce infinite values."""
DEFAULT_TEMPERATURE = 1.0
DEFAULT_MAX_TOKENS = 1024
"""The maximum number of tokens of a reply if the request does not set a limit."""

NEUTRAL: Mapping[str, tuple[float, ...]] = {
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "typical_p": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
}
"""Fields that are rejected unless they are absent, null, or one of these neutral values."""


class SamplingRequest(BaseModel):
    """How one reply is sampled. At `temperature` 0, the most probable token is chosen. A `seed` of None draws a random seed."""

    model_config = ConfigDict(strict=True)

    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] = DEFAULT_TEMPERATURE
    seed: int | None = None


def read_sampling(body: Mapping[str, Any]) -> SamplingRequest:
    """Return how the reply to a request is sampled. Raises RequestError, which names the invalid field."""
    for name, accepted in NEUTRAL.items():
        value = body.get(name)
        if value is not None and (isinstance(value, bool) or value not in accepted):
            raise wrong((name,), "is not supported", "Omit it. The whole distribution is sampled, as in training.")
    if body.get("logit_bias"):
        raise wrong(("logit_bias",), "is not supported", "Omit it.")
    return read_request(SamplingRequest, {name: value for name, value in body.items() if value is not None})


log = logging.getLogger("taskapp_kit.train")

MAX_RUNNING = 256
"""Maximum number of running and waiting requests. Further requests are rejected."""
RETRY_SECONDS = 5

ERRORS = ErrorWriter(
    "The model's server", log, stored="an answer", routes="docs/evaluate/models.md", shape=openai_error
)


class ModelServer:
    """Serves one model. `name` is its name in requests. `context_tokens` limits a prompt together with its reply."""

    def __init__(self, name: str, sampler: Sampler, renderer: Renderer, *, context_tokens: int) -> None:
        self._name = name
        self._sampler, self._renderer, self._context_tokens = sampler, renderer, context_tokens
        self._pace = Pace()
        self._running = 0

    def behind(self, key: str) -> ASGIApp:
        """Return the application, which rejects requests without this API key."""

        def authenticate(scope: Scope) -> RequestRefused | None:
            try:
                keys = candidates(scope["headers"], more_schemes=False)
            except RequestRefused as refused:
                return refused
            if any(hmac.compare_digest(candidate, key.encode()) for candidate in keys):
                return None
            return RequestRefused("unauthorised", "The key is missing or invalid.")

        sites = SiteRules(local=True)
        return ApiKeyMiddleware(self._app, authenticate, is_open=lambda scope: False, sites=sites, errors=ERRORS)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await answer_without_http(scope, receive, send)
            return
        try:
            response = await self._response(scope, receive)
        except ClientGone:
            return
        except Exception as error:
            response = ERRORS.for_model_route(scope["path"]).response(error, scope["path"])
        await response(scope, receive, send)

    async def _response(self, scope: Scope, receive: Receive) -> EncodedResponse | EventStreamResponse:
        before, _, path = scope["path"].partition(f"{SERVED_HERE}/")
        route = ROUTES.get(path)
        if before or (route is None and path != "models"):
            raise RequestRefused("not_found", "This route does not exist.", hint=f"Routes: {', '.join(ROUTES)}.")
        expected = "GET" if route is None else "POST"
        if scope["method"] != expected:
            return ERRORS.method_not_allowed([expected])
        if route is None:
            return json_answer(model_list([(self._name, 0, "taskapp-kit")]))
        body = await read_json(scope, receive, MAX_BODY_BYTES, max_values=MAX_BODY_VALUES)
        call, options = read_call(route, body), read_sampling(body)
        if body.get("model") not in (None, self._name):
            raise RequestRefused("model_not_found", "This server serves a different model.", hint=f"Use {self._name}.")
        turn = await self._turn(route, call, options, receive)
        return answer(call, turn, self._renderer.tokenizer, self._name)

    async def _turn(self, route: Route, call: GatewayCall, options: SamplingRequest, receive: Receive) -> AnsweredTurn:
        if self._running >= MAX_RUNNING:
            raise Saturated(f"{MAX_RUNNING} requests are already in progress.", retry_after_seconds=RETRY_SECONDS)
        seed = secrets.token_hex(16) if options.seed is None else str(options.seed)
        attempt = OpenAttempt(
            correlation_id=route,
            draw=f"serving/{seed}",
            model=self._name,
            settings=AttemptSettings(
                temperature=0.0 if options.temperature < LEAST_TEMPERATURE else options.temperature,
                max_tokens=call.max_tokens or DEFAULT_MAX_TOKENS,
                context_tokens=self._context_tokens,
            ),
            sampler=self._sampler,
            renderer=self._renderer,
            pace=self._pace,
            url="",
            token="",
        )
        self._running += 1
        try:
            generation = attempt.begin(call)
            assert not isinstance(generation, AnsweredTurn), "an attempt with one call has no earlier reply"
            return await while_connected(attempt.result(generation), receive)
        finally:
            await attempt.end()  # cancels the generation if the client has disconnected
            self._running -= 1
