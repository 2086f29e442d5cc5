"""The gateway: a server on a thread of the trainer, with a separate address for each open attempt.

    with Gateway(sampler, renderer, max_open_attempts=64) as gateway:
        async with gateway.attempt("rollout-7", draw="job/7/0", settings=settings) as attempt:
            ...  # a task app plays, with attempt.url as its inference_url
        attempt.record().turns

The address of an attempt only permits sampling in this attempt, until the attempt ends. Authorization headers are
ignored.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import itertools
import logging
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, get_args

import orjson

from taskapp_kit.net.auth import SiteRules
from taskapp_kit.net.body import read_json, while_connected
from taskapp_kit.net.error_response import ClientGone, ErrorWriter, RequestRefused, openai_error
from taskapp_kit.net.response import EncodedResponse, answer_without_http, peer_of
from taskapp_kit.net.sse import EventStreamResponse
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from taskapp_kit.train.gateway.answers import MODEL, answer
from taskapp_kit.train.gateway.attempt import AnsweredTurn, AttemptSettings, OpenAttempt, attempt_ended
from taskapp_kit.train.gateway.call_reader import GatewayCall, Route, read_call
from taskapp_kit.train.gateway.pace import Pace
from taskapp_kit.train.rendering.renderer import Renderer
from taskapp_kit.train.turns import Sampler

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


SECRET_BYTES = 32
MAC_CHARACTERS = 48
"""Number of hexadecimal digits of the proof (192 bits). `wire.inference_url` recognizes tokens by this length."""
MAX_TOKEN_CHARACTERS = 64


class CapabilityIssuer:
    """Issues and verifies the tokens of one gateway, with a secret that exists only in this process.

    A token is the secret part of an attempt's address. It contains the attempt's number and a proof that this gateway
    issued the token. A valid token whose attempt is not open therefore belongs to an ended attempt, and no list of
    ended attempts is needed.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(SECRET_BYTES)

    def issue(self, number: int) -> str:
        """Return the token of an attempt, `{number}-{proof}` in hexadecimal. A token does not reveal other tokens."""
        name = f"{number:x}"
        return f"{name}-{hmac.new(self._secret, name.encode(), hashlib.sha256).hexdigest()[:MAC_CHARACTERS]}"

    def read(self, token: str) -> int | None:
        """Return the attempt's number, or None if this gateway did not issue the token. The comparison takes constant time."""
        if len(token) > MAX_TOKEN_CHARACTERS or not token.isascii():
            return None
        name, _, _ = token.partition("-")
        try:
            number = int(name, 16)
        except ValueError:
            return None
        return number if number >= 0 and hmac.compare_digest(token, self.issue(number)) else None


log = logging.getLogger("taskapp_kit.train")

MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_BODY_VALUES = 200_000
ROUTES: Mapping[str, Route] = {route: route for route in get_args(Route)}

SITES = SiteRules(any_host=True)
"""Every Host header is accepted, because tunnels and proxies change it. Attempts' addresses are secret anyway."""
ERRORS = ErrorWriter("The gateway", log, stored="a turn", routes="docs/connect/agents.md", shape=openai_error)


@dataclass(frozen=True, slots=True)
class GatewayActivity:
    """The number of requests and sampled tokens in all attempts so far, and the number of running generations."""

    calls: int
    sampled_tokens: int
    running: int


class Gateway:
    """The gateway, which serves on a thread inside a `with` block. The driver's event loop opens all attempts.

    Args:
        sampler: Samples the replies.
        renderer: Renders the prompts.
        max_open_attempts: Maximum number of open attempts. Further attempts wait.
        host: The host to listen on.
        port: The port to listen on. 0 selects a free port.
        public_url: The address for task apps, if it differs from the address on which the gateway listens. If it has a
            path, a proxy must remove the path.
        pace: Measures the sampler's speed.

    Raises:
        ConfigError: The address is in use.
    """

    def __init__(
        self,
        sampler: Sampler,
        renderer: Renderer,
        *,
        max_open_attempts: int,
        host: str = "127.0.0.1",
        port: int = 0,
        public_url: str | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._sampler, self._renderer = sampler, renderer
        self._pace = pace or Pace()
        self._capabilities = CapabilityIssuer()
        self._numbers = itertools.count()
        self._attempts: dict[int, OpenAttempt] = {}
        self._slots = asyncio.Semaphore(max_open_attempts)
        self._warned: set[str] = set()
        self._calls = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server = BackgroundServer(self._app, host=host, port=port)
        self._url = (public_url or self._server.url).rstrip("/")

    @property
    def url(self) -> str:
        """The gateway's address, as task apps call it, without the part of the path that identifies a rollout attempt."""
        return self._url

    @property
    def open_attempts(self) -> int:
        """The number of open attempts. Any thread may read it."""
        return len(self._attempts)

    def activity(self) -> GatewayActivity:
        """Return the counts so far. Any thread may call this method."""
        return GatewayActivity(self._calls, self._pace.sampled_tokens, self._pace.running)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    @asynccontextmanager
    async def attempt(
        self, correlation_id: str, *, draw: str, settings: AttemptSettings, model: str = MODEL
    ) -> AsyncIterator[OpenAttempt]:
        """Open an attempt as soon as fewer than `max_open_attempts` are open. The end of the `with` block ends the attempt.

        When the attempt ends, running generations are cancelled, and its address returns 410.

        Args:
            correlation_id: Identifies the attempt in logs and stores.
            draw: Name of the attempt's random streams, such as `job/place/sample`.
            settings: The settings of the attempt's generations.
            model: The model name in the rollout's policy config. If some requests contain this name, the turns of
                requests with other names are not trained on.
        """
        loop = self._loop
        if loop is None:
            raise RuntimeError("the gateway is not running. Enter it with `with` first.")
        async with self._slots:
            number = next(self._numbers)
            token = self._capabilities.issue(number)
            attempt = OpenAttempt(
                correlation_id=correlation_id,
                draw=draw,
                model=model,
                settings=settings,
                sampler=self._sampler,
                renderer=self._renderer,
                pace=self._pace,
                url=f"{self._url}/r/{token}/v1",
                token=token,
            )
            self._attempts[number] = attempt
            try:
                yield attempt
            finally:
                del self._attempts[number]
                ending = asyncio.run_coroutine_threadsafe(attempt.end(), loop)
                await asyncio.shield(asyncio.wrap_future(ending))

    # requests

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._handle(scope, receive, send)
        else:
            self._loop = asyncio.get_running_loop()
            await answer_without_http(scope, receive, send)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        attempt = turn = None
        response: EncodedResponse | EventStreamResponse
        try:
            attempt, rest = self._addressed(scope["path"])
            peer_of(scope).keyed = True
            if (foreign := SITES.refusal(scope)) is not None:
                raise foreign
            peer_of(scope).answered = None  # a client that sends another request has read the previous response
            route = ROUTES.get(rest)
            if route is None:
                raise RequestRefused("not_found", "This route does not exist.", hint=f"Routes: {', '.join(ROUTES)}.")
            if scope["method"] != "POST":
                attempt.count_refused()
                response = ERRORS.method_not_allowed(["POST"])
            else:
                call, turn = await self._turn(attempt, route, scope, receive)
                response = answer(call, turn, self._renderer.tokenizer)
        except ClientGone:
            return
        except Exception as error:
            if attempt is not None:
                attempt.count_refused()
            response = ERRORS.for_model_route(scope["path"]).response(error, "/r/{token}/v1")
        await response(scope, receive, send)
        if turn is not None:
            await asyncio.sleep(0)  # the response is written in the event loop's next iteration
            if not peer_of(scope).left:
                turn.sent(peer_of(scope))

    def _addressed(self, path: str) -> tuple[OpenAttempt, str]:
        """Return the attempt at a request's path, and the part of the path after `/v1/`.

        Raises RequestRefused if the path does not belong to an open attempt. The message does not contain the path,
        which is secret.
        """
        parts = path.split("/", 4)
        number = (
            self._capabilities.read(parts[2])
            if len(parts) == 5 and (parts[0], parts[1], parts[3]) == ("", "r", "v1")
            else None
        )
        if number is None:
            raise RequestRefused(
                "not_found", "No attempt has this address.", hint="Use the inference_url of the current rollout."
            )
        attempt = self._attempts.get(number)
        if attempt is None:
            raise attempt_ended()
        return attempt, parts[4]

    async def _turn(
        self, attempt: OpenAttempt, route: Route, scope: Scope, receive: Receive
    ) -> tuple[GatewayCall, AnsweredTurn]:
        self._calls += 1
        attempt.count_call()
        body = await read_json(scope, receive, MAX_BODY_BYTES, max_values=MAX_BODY_VALUES)
        call = read_call(route, _without_token(body, attempt))
        self._warn(call)
        generation = attempt.begin(call)
        if isinstance(generation, AnsweredTurn):
            return call, generation
        return call, await while_connected(attempt.result(generation), receive)

    def _warn(self, call: GatewayCall) -> None:
        """Log each unenforced field once."""
        for name in call.unenforced:
            if name not in self._warned:
                self._warned.add(name)
                log.warning(
                    "a client sends %s, which is ignored during training, because it would restrict the sampled distribution",
                    name,
                )


def _without_token(body: dict[str, Any], attempt: OpenAttempt) -> dict[str, Any]:
    """Return the body with the attempt's token replaced by the correlation id, so that no prompt contains the token."""
    encoded = orjson.dumps(body)
    token = attempt.token.encode()
    if token not in encoded:
        return body
    replaced: dict[str, Any] = orjson.loads(encoded.replace(token, orjson.dumps(attempt.correlation_id)[1:-1]))
    return replaced
