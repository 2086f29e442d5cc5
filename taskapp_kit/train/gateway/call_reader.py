"""Reads the bodies of requests. Bodies of `responses` and `messages` are first translated into chat completions.

Fields that the trainer sets (temperature, penalties, …) are overridden and counted. Fields that would restrict the
sampled distribution are ignored and counted. Fields that cannot be supported are rejected.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, field_validator

from taskapp_kit.wire.chat.completion import DIALECTS, ChatCompletionRequest, CompletionRequest, Dialect, read_request
from taskapp_kit.wire.chat.dialect_body import wrong

Route = Literal["chat/completions", "completions", "responses", "messages"]

MAX_STOPS = 16
Stop = Annotated[str, Field(min_length=1, max_length=200)]
OVERRIDDEN = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
)
"""Fields that the trainer overrides. A client may send them."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "top_logprobs": (0,),
    "prompt_logprobs": (0,),
    "echo": (False,),
    "suffix": ("",),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "use_beam_search": (False,),
}
"""Fields that are rejected unless they are absent, null, or one of these values."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation and its tools, as in the request. The renderer checks the messages.

    `thinking` is False for a reply without reasoning (`chat_template_kwargs.enable_thinking`).
    """

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    thinking: bool = True


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """The prompt of `completions`: a string or token ids."""

    given: str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GatewayCall:
    """One request for a generation.

    Attributes:
        model: The model name in the request. The policy accepts every name.
        stops: Strings before which the reply ends.
        logprobs: Whether the response contains log-probabilities.
        token_ids: Whether the response contains token ids.
        usage_event: Whether a stream ends with a usage event.
        overridden: Fields that have no effect because the trainer overrides them.
        unenforced: Fields that have no effect because they are not enforced.
        digest: A hash that is equal for identical requests.
        dialect: The API of `responses` or `messages` requests. None for `chat/completions` and `completions`.
        body: If `dialect` is set, the request's body before its translation into chat completions.
    """

    prompt: ChatPrompt | TextPrompt
    model: str | None = None
    max_tokens: int | None = None
    stops: tuple[str, ...] = ()
    stream: bool = False
    usage_event: bool = False
    logprobs: bool = False
    token_ids: bool = False
    overridden: tuple[str, ...] = ()
    unenforced: tuple[str, ...] = ()
    digest: bytes = b""
    dialect: Dialect | None = None
    body: Mapping[str, Any] = field(default_factory=dict)


class PolicyRequest(CompletionRequest):
    """The fields of `CompletionRequest`, and additional fields of both `chat/completions` and `completions` requests."""

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    return_token_ids: bool | None = None


class ShownFunction(BaseModel):
    """A function that the policy may call."""

    model_config = ConfigDict(strict=True)

    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ShownTool(BaseModel):
    """A tool, which must be a function."""

    type: Literal["function"]
    function: ShownFunction


class TemplateOptions(BaseModel):
    """`chat_template_kwargs`."""

    model_config = ConfigDict(strict=True)

    enable_thinking: bool | None = None


class PolicyChatRequest(PolicyRequest, ChatCompletionRequest):
    """A request for a chat completion. The renderer checks the messages."""

    tools: list[ShownTool] | None = None
    logprobs: bool | None = None
    chat_template_kwargs: TemplateOptions | None = None


class PolicyTextRequest(PolicyRequest):
    """A request for a completion of one prompt. It may only request the log-probabilities of sampled tokens."""

    prompt: Any = None
    logprobs: Literal[0, False] | None = None

    @field_validator("prompt")
    @classmethod
    def read_prompt(cls, value: Any) -> TextPrompt:
        """Accept a string, a list of token ids, or a list that contains only one such prompt."""
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
            value = value[0]
        if isinstance(value, str) and value:
            return TextPrompt(value)
        if isinstance(value, list) and value and all(type(item) is int for item in value):
            return TextPrompt(tuple(value))
        raise ValueError("should be one prompt: a string or a list of token ids")


def read_call(route: Route, body: dict[str, Any]) -> GatewayCall:
    """Parse the body of a request. Raises RequestError, which names the field that is invalid or not supported."""
    dialect = DIALECTS.get(route)
    if dialect is not None:
        return replace(read_call("chat/completions", dialect.chat_request(body)), dialect=dialect, body=body)
    for name, accepted in NEUTRAL.items():
        value = body.get(name)
        if value is not None and not any(value == item and type(value) is type(item) for item in accepted):
            raise wrong((name,), "is not supported", "Omit it.")
    request: PolicyChatRequest | PolicyTextRequest
    if route == "chat/completions":
        request = read_request(PolicyChatRequest, body)
        options = request.chat_template_kwargs
        tools = () if body.get("tool_choice") == "none" else tuple(body.get("tools") or ())  # as in the request
        thinking = options is None or options.enable_thinking is not False
        prompt = ChatPrompt(tuple(request.messages), tools, thinking)
    else:
        request = read_request(PolicyTextRequest, body)
        prompt = request.prompt
    limits = [limit for limit in (request.max_completion_tokens, request.max_tokens) if limit is not None]
    return GatewayCall(
        prompt=prompt,
        model=request.model,
        max_tokens=min(limits, default=None),
        stops=(request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ()),
        stream=bool(request.stream),
        usage_event=request.usage_event,
        logprobs=bool(request.logprobs) if route == "chat/completions" else request.logprobs is not None,
        token_ids=bool(request.return_token_ids),
        overridden=tuple(name for name in OVERRIDDEN if body.get(name) is not None),
        unenforced=tuple(_unenforced(body)),
        digest=hashlib.sha256(route.encode() + orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).digest(),
    )


def _unenforced(body: Mapping[str, Any]) -> Iterable[str]:
    choice, form = body.get("tool_choice"), body.get("response_format")
    if choice is not None and choice not in ("auto", "none"):
        yield "tool_choice"
    if isinstance(form, dict) and form.get("type") != "text":
        yield "response_format"
    if body.get("logit_bias"):
        yield "logit_bias"
    if body.get("parallel_tool_calls") is False:
        yield "parallel_tool_calls"
