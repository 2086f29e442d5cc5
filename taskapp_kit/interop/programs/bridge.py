"""A server that a program uses as its model. Each call goes to the rollout's model.

    POST /TOKEN/v1/chat/completions, responses, messages     the model in the rollout request
    POST /TOKEN/step                                         {"tool": …, "args": …}: one action of the environment

The program never has the model's address or key. Its calls have the same retries, limits and records as in any rollout.
Calls run one after another, because an episode has one thread. The bridge runs on the episode's event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import socket
from collections.abc import Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from taskapp_kit.errors import RequestError
from taskapp_kit.net.body import parse_json, read_body
from taskapp_kit.net.error_response import ClientGone, ErrorWriter, RequestRefused, openai_error
from taskapp_kit.net.response import EncodedResponse, json_answer, peer_of
from taskapp_kit.net.sse import event_frames
from taskapp_kit.rollout.policy.author_loop import LoopEnvironment, LoopModel
from taskapp_kit.serve.connection_limits import ConnectionLimits
from taskapp_kit.serve.uvicorn_server import LoopServer
from taskapp_kit.wire.chat.completion import (
    DIALECTS,
    ChatCompletionRequest,
    CompletionRequest,
    answer_events,
    completion,
    read_request,
    token_usage,
)
from taskapp_kit.wire.chat.dialect_body import entries, wrong

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

log = logging.getLogger("taskapp_kit.policy")

MAX_BODY_BYTES = 16 * 1024 * 1024
CHAT = "chat/completions"
OURS = ("model", "messages", "tools", "stream", "stream_options", "n", "logprobs", "top_logprobs", "return_token_ids")
"""The fields of a request that the kit sets or reads. All other fields are the program's sampling parameters."""
PLACES = 32
"""The maximum number of concurrent connections. Further connections wait."""
BODY_SECONDS = 30.0
"""The time within which a request's body must arrive."""
MAX_UNDELIVERED = 8
"""How many responses are stored for clients that disconnected before they read the response."""
ERRORS = ErrorWriter(
    "The bridge of a program", log, stored="a rollout", routes="docs/connect/agents.md", shape=openai_error
)

Body = dict[str, Any]


class ProgramBridge:
    """A server for one rollout. It runs between `__enter__` and `__exit__`, on the event loop that calls them.

    It handles one request at a time, and closes each connection after the response. So a program occupies at most
    PLACES connections, and the memory for one body.

    Attributes:
        prefix: The beginning of all paths, which contains the token.
        ended: A future. Its exception is set when a request to the bridge ends the rollout.
    """

    def __init__(self, listener: socket.socket, model: LoopModel, env: LoopEnvironment) -> None:
        self.prefix = f"/{secrets.token_urlsafe(16)}"
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._model, self._env = model, env
        self._server = LoopServer(self._app, listener, ConnectionLimits(PLACES, max_buffered_bytes=4 * MAX_BODY_BYTES))
        self._one_at_a_time = asyncio.Lock()
        self._undelivered: dict[bytes, Body] = {}

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop()
        if self.ended.done() and not self.ended.cancelled():
            self.ended.exception()  # retrieves it, because the program may have ended at the same time

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        digest = b""
        try:
            async with self._one_at_a_time:
                digest, response = await self._answer(scope, receive)
        except ClientGone:
            return
        except asyncio.CancelledError:
            response = ERRORS.response(RequestRefused("attempt_ended", "The rollout has ended."))
        except Exception as error:
            response = ERRORS.for_model_route(scope["path"]).response(error, "/{token}")
        gone = peer_of(scope).gone
        response.headers = [*response.headers, (b"connection", b"close")]
        await response(scope, receive, send)
        if not (gone or peer_of(scope).left):
            self._undelivered.pop(digest, None)

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[bytes, EncodedResponse]:
        """Return a request's digest and response.

        If the program repeats a request whose response could not be delivered, return that response again.
        """
        path = scope["path"]
        route = path.removeprefix(self.prefix).removeprefix("/v1/").strip("/")
        if not path.startswith(f"{self.prefix}/") or route not in (CHAT, *DIALECTS, "step"):
            hint = f"The routes are {CHAT}, {', '.join(DIALECTS)} and step."
            raise RequestRefused("not_found", "The route does not exist.", hint=hint)
        if scope["method"] != "POST":
            return b"", ERRORS.method_not_allowed(["POST"])
        content = await read_body(scope, receive, MAX_BODY_BYTES, BODY_SECONDS)
        digest = hashlib.sha256(path.encode() + content).digest()
        body = await parse_json(content)
        answer = self._undelivered.get(digest)
        if answer is None:
            answer = await self._ending(self._step(body) if route == "step" else self._completion(route, body))
            self._undelivered[digest] = answer
            if len(self._undelivered) > MAX_UNDELIVERED:
                del self._undelivered[next(iter(self._undelivered))]
        return digest, _written(route, answer, body)

    async def _ending(self, work: Coroutine[Any, Any, Body]) -> Body:
        """Await the response. If the model call fails, end the rollout. An invalid request does not end the rollout."""
        try:
            return await work
        except (RequestError, asyncio.CancelledError):
            raise
        except BaseException as error:  # the program must not see the exception's message
            if not self.ended.done():
                self.ended.set_exception(error)
        raise RequestRefused("model_failed", "The model call failed, so the rollout ends.")

    async def _completion(self, route: str, body: Body) -> Body:
        """Call the model and return a chat completion. route: the API of the request."""
        dialect = DIALECTS.get(route)
        request = body if dialect is None else dialect.chat_request(body)
        chat = read_request(ChatCompletionRequest, request)
        tools = entries(request, "tools")
        if request.get("n") not in (None, 1):
            raise wrong(("n",), "is not supported", "Omit it.")
        sampling = {name: value for name, value in request.items() if name not in OURS and value is not None}
        reply = await self._model.chat(chat.messages, tools or None, **sampling)
        choice = {
            "index": 0,
            "finish_reason": reply.finish_reason or "stop",
            "logprobs": None,
            "message": {"content": None, **reply.message},
        }
        usage = token_usage(*(int(reply.usage.get(name, 0)) for name in ("prompt_tokens", "completion_tokens")))
        return completion(secrets.token_hex(12), [choice], usage, model=body.get("model") or "policy")

    async def _step(self, body: Body) -> Body:
        if not isinstance(body.get("tool"), str):
            raise wrong(("tool",), "should be the name of an action")
        try:
            step = await self._env.step(body["tool"], body.get("args") or {})
        except ValueError as error:
            raise wrong(("args",), f"cannot be used: {error}") from None
        return {"observation": step.observation, "reward": step.reward, "refused": step.refused}


def _written(route: str, whole: Body, body: Body) -> EncodedResponse:
    """Return the chat completion in the format of the request's API."""
    if route == "step":
        return json_answer(whole)
    dialect = DIALECTS.get(route)
    answer = whole if dialect is None else dialect.answer(whole, body)
    if not body.get("stream"):
        return json_answer(answer)
    usage_event = dialect is None and read_request(CompletionRequest, body).usage_event
    frames = event_frames(answer_events(answer, dialect, usage_event=usage_event))
    return EncodedResponse(200, b"".join(frames), [(b"content-type", b"text/event-stream")])
