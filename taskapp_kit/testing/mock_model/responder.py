"""The mock model without its connections: it returns a write plan for each received request."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import logging
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import orjson

from taskapp_kit.errors import ConfigError
from taskapp_kit.net.auth import SiteRules
from taskapp_kit.net.error_response import REFUSAL_STATUS
from taskapp_kit.records.content import Json
from taskapp_kit.rollout.policy.sampling import sentence
from taskapp_kit.testing.mock_model import chat_response, delivery, tokenizer
from taskapp_kit.testing.mock_model.behaviours import Behaviour, random_answers
from taskapp_kit.testing.mock_model.chat_request import ChatRequest, Refused, check
from taskapp_kit.testing.mock_model.connection import ReceivedRequest, WritePlan
from taskapp_kit.testing.mock_model.faults import Faults, known
from taskapp_kit.testing.mock_model.reply import Reply, reply_of
from taskapp_kit.testing.mock_model.request_log import Recorded, RequestLog
from taskapp_kit.wire.chat.completion import completion, model_list, token_usage

logger = logging.getLogger(__name__)

REDIRECTED = "/redirected"
SITES = SiteRules(any_host=True)
"""The mock accepts any host name, because it has no keys. It rejects requests from web pages on other sites."""


@dataclass(slots=True)
class Responder:
    """A mock model without an address. `MockModel` documents the fields.

    `remembered` is the number of conversations whose repetitions are counted. An older conversation counts as new.
    """

    behaviour: Behaviour = field(default_factory=random_answers)
    seed: int = 0
    latency_seconds: float | tuple[float, float] = 0.0
    chunk_seconds: float = 0.0
    faults: Faults = field(default_factory=Faults)
    models: Sequence[str] = ()
    api_key: str | None = None
    context_tokens: int | None = None
    weight_version: str | None = None
    records: RequestLog = field(default_factory=lambda: RequestLog(1000, ()))
    remembered: int = 65_536
    _sent: dict[bytes, int] = field(default_factory=dict)

    def handle(self, arrived: ReceivedRequest) -> WritePlan | Awaitable[WritePlan]:
        """Return the write plan for a request."""
        self.records.look(arrived.target, arrived.headers, arrived.body)
        path, _, query = arrived.target.decode("latin-1").partition("?")
        headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in arrived.headers)
        record = Recorded(arrived.method, unquote(path), query, headers, arrived.body, time.time())
        if not path.startswith("/mock/"):
            self.records.requests += 1
            if self.records.keep:
                self.records.recorded.append(record)
        try:
            return self._route(arrived, record)
        except Exception as error:
            return self._failed(error, record)

    def _route(self, arrived: ReceivedRequest, record: Recorded) -> WritePlan | Awaitable[WritePlan]:
        foreign = SITES.refusal({"headers": arrived.headers})
        if foreign is not None:
            raise Refused(foreign.message, status=REFUSAL_STATUS[foreign.code], code=foreign.code)
        path = record.path.rstrip("/")
        if path.startswith(REDIRECTED):
            self.records.redirects_followed += 1
            return self._object({"error": {"message": "This address is the target of a redirect."}}, record)
        if path.endswith(("/chat/completions", "/completions", "/update_weight_version")):
            if arrived.method != "POST":
                raise Refused(f"Not allowed: {arrived.method} on {path}. Use POST.", status=405)
            self._authorize(record)
            record.body = _read(arrived)
            if path.endswith("/chat/completions"):
                return self._chat(record)
            if path.endswith("/completions"):
                return self._completion(record)
            return self._update(record)
        if arrived.method in ("GET", "HEAD"):
            if path == "/mock/stats":
                return self._object({**self.records.stats(), "in_flight": self.records.in_flight - 1}, record)
            if path.endswith("/health"):
                return self._object({"status": "ok"}, record)
            if path.endswith("/models"):
                self._authorize(record)
                names = self.models or ("mock",)
                return self._object(model_list((name, 0, "taskapp-kit") for name in names), record)
        raise Refused(f"Unknown request URL: {arrived.method} {path}.", status=404, code="unknown_url")

    def _authorize(self, record: Recorded) -> None:
        if self.api_key is not None and record.header("authorization") != f"Bearer {self.api_key}":
            raise Refused("Incorrect API key provided.", status=401, code="invalid_api_key")

    # chat completions

    def _chat(self, record: Recorded) -> WritePlan | Awaitable[WritePlan]:
        body = record.body
        check(body)
        self._check_model(body)
        request = self._request(record, body["messages"])
        kind = self.faults.choose(bytes.fromhex(request.digest), request.attempt)
        if kind is not None:
            early = self._early(kind, request, record)
            if early is not None:
                return early
        prompt = tokenizer.prompt(body)
        if self.context_tokens is not None and prompt.length > self.context_tokens:
            raise _too_long(self.context_tokens, prompt.length)
        self.records.prompt_tokens += prompt.length
        choices = [request, *(dataclasses.replace(request, choice=index) for index in range(1, body.get("n") or 1))]
        replies = [self.behaviour(choice) for choice in choices]
        if any(inspect.isawaitable(reply) for reply in replies):
            return self._later(request, record, prompt, replies, kind)
        return self._finish(request, record, prompt, [reply_of(reply) for reply in replies], kind)

    def _check_model(self, body: dict[str, Any]) -> None:
        model = body.get("model")
        if not isinstance(model, str) or not model:
            raise Refused("You must provide a model parameter.", "model")
        if self.models and model not in self.models:
            raise Refused(f"The model `{model}` does not exist.", "model", status=404, code="model_not_found")

    def _request(self, record: Recorded, messages: Json) -> ChatRequest:
        digest = hashlib.sha256(orjson.dumps(messages, option=orjson.OPT_SORT_KEYS)).digest()
        attempt = self._sent.pop(digest, 0)
        if len(self._sent) >= self.remembered:
            del self._sent[next(iter(self._sent))]
        self._sent[digest] = attempt + 1
        record.attempt = attempt
        return ChatRequest(record.body, record.path, record.query, record.headers, digest.hex(), attempt, self.seed)

    async def _later(
        self,
        request: ChatRequest,
        record: Recorded,
        prompt: tokenizer.Prompt,
        replies: list[Any],
        kind: str | None,
    ) -> WritePlan:
        try:
            awaited = [reply_of(await reply if inspect.isawaitable(reply) else reply) for reply in replies]
            return self._finish(request, record, prompt, awaited, kind)
        except Exception as error:
            return self._failed(error, record)

    def _failed(self, error: Exception, record: Recorded) -> WritePlan:
        """Return the error response for a rejected request or an exception of the script."""
        if isinstance(error, Refused):
            self.records.refused += 1
            return self._refusal(error, record)
        self.records.script_errors += 1
        logger.error("The mock model's script raised %s.", type(error).__name__, exc_info=error)
        message = f"The mock model's script raised {type(error).__name__}: {error}"
        return self._refusal(Refused(message, status=500, code="script_error"), record)

    # faults

    def _early(self, kind: str, request: ChatRequest, record: Recorded) -> WritePlan | None:
        """Count a fault, and return its plan if the fault replaces the reply, or None otherwise."""
        record.fault = kind
        self.records.faults[kind] = self.records.faults.get(kind, 0) + 1
        delay = self._latency(request)
        if kind.isdecimal():
            refused = Refused(f"The mock model answers {kind} here.", status=int(kind), code=f"mock_{kind}")
            return self._refusal(refused, record, delay)
        if kind == "context":
            length = tokenizer.prompt(request.body).length
            return self._refusal(_too_long(length - 1, length), record, delay)
        early = delivery.unanswered(
            kind,
            delay,
            streamed=bool(request.body.get("stream")),
            location=self.faults.redirect_to or f"{REDIRECTED}{record.path}",
        )
        if early is not None:
            record.status = early.status
        return early

    def _changed(self, reply: Reply, kind: str) -> Reply:
        """Return the reply as changed by a fault that affects its content."""
        if kind == "blank":
            return Reply()
        if kind == "content_filter":
            return Reply(finish_reason="content_filter")
        if kind == "refusal":
            return Reply(refusal="I cannot help with that.")
        if kind == "length":
            return tokenizer.cut(reply, max(1, tokenizer.count(tokenizer.answer(reply)) // 2))
        return reply

    # what is sent

    def _finish(
        self,
        request: ChatRequest,
        record: Recorded,
        prompt: tokenizer.Prompt,
        replies: list[Reply],
        kind: str | None,
    ) -> WritePlan:
        scripted = next((reply.fault for reply in replies if reply.fault is not None), None)
        if kind is None and scripted is not None:
            kind = known("reset_early" if scripted == "reset" else scripted)
            early = self._early(kind, request, record)
            if early is not None:
                return early
        if kind is not None:
            replies = [self._changed(reply, kind) for reply in replies]
        choices = [
            chat_response.write(
                dataclasses.replace(request, choice=index) if index else request, reply, uneven=kind == "uneven"
            )
            for index, reply in enumerate(replies)
        ]
        self.records.completion_tokens += sum(choice.length for choice in choices)
        if kind is None:
            self.records.answers += 1
        if kind == "empty":
            choices = []
        record.status = 200
        delay = self._latency(request)
        model, version = request.body["model"], self.weight_version
        if request.body.get("stream"):
            self.records.streams += 1
            events = chat_response.events(request, prompt, choices, model, version)
            return delivery.stream(events, delay, kind, self.chunk_seconds, self.faults.slow_seconds)
        answer = orjson.dumps(chat_response.plain(request, prompt, choices, model, version))
        return delivery.whole(
            answer, delay, kind, f"chatcmpl-{chat_response.identity(request)}", self.faults.slow_seconds
        )

    def _latency(self, request: ChatRequest) -> float:
        if isinstance(self.latency_seconds, tuple):
            return request.rng(f"latency {request.attempt}").uniform(*self.latency_seconds)
        return self.latency_seconds

    def _object(self, value: Json, record: Recorded, delay: float = 0.0) -> WritePlan:
        record.status = 200
        return delivery.json_object(value, delay, bare=record.method == "HEAD")

    def _refusal(self, refused: Refused, record: Recorded, delay: float = 0.0) -> WritePlan:
        record.status = refused.status
        return delivery.refusal(refused, delay, self.faults.retry_after_seconds, bare=record.method == "HEAD")

    # other endpoints

    def _completion(self, record: Recorded) -> WritePlan | Awaitable[WritePlan]:
        """Handle the legacy completions endpoint, which accepts one prompt and supports neither streams nor faults."""
        body = record.body
        if not isinstance(body, dict):
            raise Refused("We could not parse the JSON body of your request: it is not an object.")
        self._check_model(body)
        prompt = body.get("prompt")
        if isinstance(prompt, list) and all(
            isinstance(item, int) and 0 <= item < tokenizer.VOCABULARY for item in prompt
        ):
            prompt = tokenizer.text(prompt)
        if not isinstance(prompt, str) or body.get("stream"):
            raise Refused("Expected one 'prompt', as text or token ids, and no 'stream'.", "prompt")
        messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
        record.body = {**body, "messages": messages}
        request = self._request(record, messages)
        written = tokenizer.cut(Reply(sentence(request.rng())), body.get("max_tokens") or 16)
        length = tokenizer.count(tokenizer.answer(written, ended=written.finish != "length"))
        self.records.answers += 1
        choice = {"index": 0, "text": written.content or "", "logprobs": None, "finish_reason": written.finish}
        identity, usage = chat_response.identity(request), token_usage(len(prompt.encode()), length)
        answer = completion(identity, [choice], usage, model=body["model"], text=True)
        return self._object(answer, record, self._latency(request))

    def _update(self, record: Recorded) -> WritePlan:
        """Set the version of the weights from `{"new_version": "step-42"}`, which trainers send."""
        version = record.body.get("new_version") if isinstance(record.body, dict) else None
        if not isinstance(version, str):
            raise Refused("Expected a string in 'new_version'.", "new_version")
        self.weight_version = version
        return self._object({"success": True, "new_version": version}, record)


def _read(arrived: ReceivedRequest) -> Any:
    if any(name == b"content-encoding" for name, _ in arrived.headers):
        raise Refused("A body with a content encoding is not supported.", status=415)
    try:
        return orjson.loads(arrived.body)
    except orjson.JSONDecodeError as error:
        raise Refused(f"We could not parse the JSON body of your request: {error}.") from None


def _too_long(limit: int, length: int) -> Refused:
    return Refused(
        f"This model's maximum context length is {limit} tokens. However, your messages resulted in {length} tokens. "
        "Please reduce the length of the messages.",
        "messages",
        code="context_length_exceeded",
    )


def latency_of(given: float | tuple[float, float]) -> float | tuple[float, float]:
    """Return the latency unchanged. Raises ConfigError if it is negative or the bounds are in the wrong order."""
    low, high = given if isinstance(given, tuple) else (given, given)
    if not 0 <= low <= high < 86_400:
        raise ConfigError(f"The latency {given} is invalid.", hint="Use seconds ≥ 0, or a pair (low, high).")
    return given
