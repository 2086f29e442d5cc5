"""`python bench/gateway_server.py PORT gateway|bare`: a gateway whose sampler answers at once, or a server without one.

POST /attempts ends all attempts and opens new ones; it returns their paths. `bare` reads the same bodies with the same code
and answers with the same bytes each time.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from taskapp_kit.net.body import read_json
from taskapp_kit.net.response import json_answer
from taskapp_kit.serve.uvicorn_server import BackgroundServer
from taskapp_kit.train.gateway.attempt import AttemptSettings
from taskapp_kit.train.gateway.gateway_server import MAX_BODY_BYTES, MAX_BODY_VALUES, Gateway
from taskapp_kit.train.rendering.chatml import ChatMl
from taskapp_kit.train.turns import Sampled

ATTEMPTS = 256
ANSWER = "north"
LAYOUT = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SETTINGS = AttemptSettings(temperature=1.0, max_tokens=64, context_tokens=100_000)
BARE = {
    "id": "chatcmpl-0",
    "object": "chat.completion",
    "created": 0,
    "model": "policy",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": ANSWER}}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


class Bytes:
    """A tokenizer whose ids are bytes, then the tokens of the layout."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def token(self, name: str) -> int | None:
        return 256 + LAYOUT.index(name) if name in LAYOUT else None

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(each for each in ids if each < 256).decode(errors="replace")


class Instant:
    """A sampler without a model."""

    version = 0
    ids = (*ANSWER.encode(), 256 + LAYOUT.index("<|im_end|>"))

    async def sample(
        self, prompt_ids: Sequence[int], *, max_tokens: int, temperature: float, stop_ids: frozenset[int], draw: str
    ) -> Sampled:
        return Sampled(self.ids, (-1.0,) * len(self.ids), "stop", 0, 0.0)


class Attempts:
    """The open attempts of a gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._open = AsyncExitStack()

    async def renew(self, _: Request) -> JSONResponse:
        await self._open.aclose()
        self._open = AsyncExitStack()
        opened = [
            await self._open.enter_async_context(
                self._gateway.attempt(f"attempt-{number}", draw=str(number), settings=SETTINGS)
            )
            for number in range(ATTEMPTS)
        ]
        return JSONResponse({"origin": self._gateway.url, "paths": [urlsplit(each.url).path for each in opened]})


async def healthy(_: Request) -> JSONResponse:
    return JSONResponse({"healthy": True})


async def bare(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers every POST like a model that needs no time."""
    if scope["type"] == "http" and scope["method"] == "POST":
        await read_json(scope, receive, MAX_BODY_BYTES, max_values=MAX_BODY_VALUES)
        await json_answer(BARE)(scope, receive, send)
    elif scope["type"] == "http":
        await json_answer({"healthy": True})(scope, receive, send)


def main(port: int, kind: str) -> None:
    if kind == "bare":
        with BackgroundServer(bare, port=port):
            asyncio.run(_for_ever())
    with Gateway(Instant(), ChatMl(Bytes()), max_open_attempts=ATTEMPTS) as gateway:
        routes = [Route("/health", healthy), Route("/attempts", Attempts(gateway).renew, methods=["POST"])]
        with BackgroundServer(Starlette(routes=routes), port=port):
            asyncio.run(_for_ever())


async def _for_ever() -> None:
    await asyncio.Event().wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
