"""A gateway with a scripted sampler behind it, and clients in front of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from taskapp_kit.train.gateway.attempt import AttemptRecord, AttemptSettings, OpenAttempt
from taskapp_kit.train.gateway.gateway_server import Gateway
from taskapp_kit.train.gateway.pace import Pace
from taskapp_kit.train.rendering.chatml import ChatMl
from taskapp_kit.train.turns import Sampled
from tests.train.byte_tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()
RENDERER = ChatMl(TOKENIZER)
END = TOKENIZER.token("<|im_end|>")
SETTINGS = AttemptSettings(temperature=0.7, max_tokens=64, context_tokens=4096)
USER = {"role": "user", "content": "Hello."}


@dataclass
class SampleCall:
    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    draw: str

    @property
    def prompt(self) -> str:
        return TOKENIZER.decode(self.prompt_ids)


@dataclass
class ScriptedSampler:
    """Answers each call with `reply(call)`: a text, which the end token follows, or token ids.

    held: answers wait until `release` is called, from any thread. uneven: a log-probability is missing.
    """

    reply: Callable[[SampleCall], str | Sequence[int]] = lambda call: "Hi."
    held: bool = False
    uneven: bool = False
    version: int = 3
    calls: list[SampleCall] = field(default_factory=list)
    cancelled: int = 0
    waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = field(default_factory=list)

    async def sample(
        self, prompt_ids: Sequence[int], *, max_tokens: int, temperature: float, stop_ids: frozenset[int], draw: str
    ) -> Sampled:
        call = SampleCall(tuple(prompt_ids), max_tokens, temperature, draw)
        self.calls.append(call)
        if self.held:
            loop = asyncio.get_running_loop()
            released = loop.create_future()
            self.waiting.append((loop, released))
            try:
                await released
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        given = self.reply(call)
        ids = (*TOKENIZER.encode(given), END) if isinstance(given, str) else tuple(given)
        cut = tuple(ids[:max_tokens])
        return Sampled(
            token_ids=cut,  # type: ignore[arg-type]
            log_probs=tuple(-0.5 - at / 1000 for at in range(len(cut) - self.uneven)),
            finish_reason="stop" if cut[-1] in stop_ids else "length",
            version=self.version,
            seconds=0.25,
        )

    def release(self) -> None:
        """Answer the calls that wait, and every later one at once."""
        self.held = False
        while self.waiting:
            loop, released = self.waiting.pop()
            loop.call_soon_threadsafe(lambda released=released: released.done() or released.set_result(None))


@dataclass
class Client:
    attempt: OpenAttempt
    http: httpx.AsyncClient

    async def post(self, body: Any, route: str = "chat/completions", **more: Any) -> httpx.Response:
        return await self.http.post(f"{self.attempt.url}/{route}", json=body, **more)

    async def chat(self, *messages: dict[str, Any], **more: Any) -> dict[str, Any]:
        """The first choice of a chat completion."""
        response = await self.post({"messages": messages, **more})
        assert response.status_code == 200, response.text
        choice: dict[str, Any] = response.json()["choices"][0]
        return choice

    async def message(self, *messages: dict[str, Any], **more: Any) -> dict[str, Any]:
        message: dict[str, Any] = (await self.chat(*messages, **more))["message"]
        return message


@asynccontextmanager
async def attempt_client(
    sampler: ScriptedSampler, settings: AttemptSettings = SETTINGS, *, pace: Pace | None = None
) -> AsyncIterator[Client]:
    """A gateway with one open attempt, which ends with the block."""
    with Gateway(sampler, RENDERER, max_open_attempts=4, pace=pace) as gateway:
        async with (
            httpx.AsyncClient(timeout=60) as http,
            gateway.attempt("cid-1", draw="job/0/0", settings=settings) as attempt,
        ):
            yield Client(attempt, http)


def played(
    calls: Callable[[Client], Awaitable[None]],
    sampler: ScriptedSampler,
    settings: AttemptSettings = SETTINGS,
    **named: Any,
) -> AttemptRecord:
    """What the gateway recorded of these calls, once their attempt has ended. named: as of `client`."""

    async def scenario() -> AttemptRecord:
        async with attempt_client(sampler, settings, **named) as client:
            await calls(client)
        return client.attempt.record()

    return asyncio.run(scenario())


def code_of(response: httpx.Response) -> str:
    """The code of an error, in the shape that clients of OpenAI's APIs read."""
    code: str = response.json()["error"]["code"]
    return code
