"""Requests for chat completions. The validation is as strict as the strictest model provider's."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self
from urllib.parse import parse_qs

from pydantic import BaseModel, ConfigDict, Field, model_validator

from taskapp_kit.errors import RequestError
from taskapp_kit.records.seeds import derived_rng
from taskapp_kit.wire.chat.completion import CompletionRequest, read_request

TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Refused(Exception):
    """A request is rejected with an error object, which contains the invalid parameter in `param` and an error code."""

    def __init__(self, message: str, param: str | None = None, *, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request, which is the argument of script functions.

    Attributes:
        body: The parsed JSON body.
        path: The requested path, such as `/rollouts/{id}/v1/chat/completions`.
        query: The query string, such as `cid=…`.
        headers: Pairs of header name, in lower case, and value.
        digest: The SHA-256 of the messages in hexadecimal.
        attempt: How often the same conversation was sent before.
        seed: The server's seed.
        choice: The index of this reply if the request asks for `n` replies.
    """

    body: Mapping[str, Any]
    path: str = "/v1/chat/completions"
    query: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    digest: str = ""
    attempt: int = 0
    seed: int = 0
    choice: int = 0

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation."""
        messages: list[dict[str, Any]] = self.body["messages"]
        return messages

    @property
    def turn(self) -> int:
        """The number of replies in the conversation, which is 0 in the first turn."""
        return sum(message["role"] == "assistant" for message in self.messages)

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The offered functions (name, description, parameters). Empty if `tool_choice` is `none`."""
        if self.body.get("tool_choice") == "none":
            return []
        named = self.named_tool
        offered = [item["function"] for item in self.body.get("tools") or ()]
        return [function for function in offered if named is None or function["name"] == named]

    @property
    def named_tool(self) -> str | None:
        """The name of the function that `tool_choice` requires, or None if it requires no particular function."""
        choice = self.body.get("tool_choice")
        return str(choice["function"]["name"]) if isinstance(choice, Mapping) else None

    @property
    def last_text(self) -> str:
        """The text of the last message that is not from the assistant."""
        return next((text_of(item) for item in reversed(self.messages) if item["role"] != "assistant"), "")

    @property
    def text(self) -> str:
        """The text of all messages, separated by blank lines."""
        return "\n\n".join(map(text_of, self.messages))

    @property
    def cid(self) -> str | None:
        """The correlation id in the query string, or None if there is none."""
        return parse_qs(self.query).get("cid", [None])[0]

    def rng(self, purpose: str = "answer") -> random.Random:
        """Return a random generator that depends only on the conversation, the request's `seed` and the choice."""
        return derived_rng("mock-model", self.seed, purpose, self.digest, str(self.body.get("seed")), self.choice)


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message. Images are omitted."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if part.get("type") == "text")
    return content or ""


class Strict(BaseModel):
    """A part of a request. Unknown fields are ignored."""

    model_config = ConfigDict(strict=True)


class ImageAddress(Strict):
    """The URL of an image."""

    url: str


class ContentPart(Strict):
    """A part of the content of a message."""

    type: Literal["text", "image_url", "input_audio", "file", "refusal"]
    text: str | None = None
    image_url: ImageAddress | None = None

    @model_validator(mode="after")
    def check_member(self) -> Self:
        """Check that a text part contains text and an image part contains an image."""
        if self.type in ("text", "image_url") and getattr(self, self.type) is None:
            raise ValueError(f"should have {self.type}")
        return self


class CalledFunction(Strict):
    """The function in a tool call. The arguments may be any string."""

    name: str
    arguments: str


class SentCall(Strict):
    """A tool call in a message from the assistant."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class StrictMessage(Strict):
    """A message of any role."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[ContentPart], Field(min_length=1)] | None = None
    refusal: str | None = None
    reasoning_content: Any = None
    tool_calls: Annotated[list[SentCall], Field(min_length=1)] | None = None
    tool_call_id: str | None = None


class OfferedFunction(Strict):
    """A function that the model may call."""

    name: str
    parameters: dict[str, Any] | None = None


class OfferedTool(Strict):
    """A tool."""

    type: Literal["function"]
    function: OfferedFunction


class NamedSchema(Strict):
    """The schema of a reply."""

    name: str
    json_schema: dict[str, Any] = Field(alias="schema")


class AnswerForm(Strict):
    """`response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def check_schema(self) -> Self:
        """Check that the type `json_schema` is accompanied by a schema."""
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("should have json_schema")
        return self


class StrictChatRequest(CompletionRequest):
    """A request for chat completions that the strictest model provider accepts."""

    messages: Annotated[list[StrictMessage], Field(min_length=1)]
    tools: Annotated[list[OfferedTool], Field(min_length=1)] | None = None
    tool_choice: Literal["none", "auto", "required"] | OfferedTool | None = None
    response_format: AnswerForm | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=2**31)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    parallel_tool_calls: bool | None = None
    return_token_ids: bool | None = None


def check(body: Any) -> None:
    """Raise Refused if a model provider would reject the request with 400."""
    try:
        request = read_request(StrictChatRequest, body)
    except RequestError as error:
        place, *inner = error.fields[0].loc[1:] or ("body",)
        param = f"{place}{''.join(f'[{part}]' if isinstance(part, int) else f'.{part}' for part in inner)}"
        raise Refused(f"Invalid '{param}': it {error.fields[0].message}.", param) from None
    if request.top_logprobs and not request.logprobs:
        raise Refused("The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.", "top_logprobs")
    if request.stream_options is not None and not request.stream:
        raise Refused("The 'stream_options' parameter is only allowed when 'stream' is enabled.", "stream_options")
    _check_messages(request.messages)
    _check_tools(request)


def _check_messages(messages: list[StrictMessage]) -> None:
    """Check that no message is empty, and that each tool call is followed by a tool message."""
    unanswered: set[str] = set()
    for index, message in enumerate(messages):
        calls = message.tool_calls or []
        if calls and message.role != "assistant":
            raise Refused("Only the assistant's messages have 'tool_calls'.", f"messages[{index}].tool_calls")
        if message.content is None and (
            message.role != "assistant" or not (calls or message.refusal or message.reasoning_content)
        ):
            raise Refused(
                f"Invalid 'messages[{index}].content': expected a string or a list of parts.",
                f"messages[{index}].content",
            )
        if message.role == "tool":
            if message.tool_call_id not in unanswered:
                raise Refused(
                    "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'.",
                    f"messages[{index}].tool_call_id",
                )
            unanswered.discard(message.tool_call_id)
            continue
        if unanswered:
            break
        unanswered = {call.id for call in calls}
        if len(unanswered) < len(calls):
            raise Refused("The calls of a message must have different ids.", f"messages[{index}].tool_calls")
    if unanswered:
        raise Refused(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
            f"Without a response: {', '.join(sorted(unanswered))}.",
            "messages",
        )


def _check_tools(request: StrictChatRequest) -> None:
    """Check that functions have valid names and an object as parameters, and that `tool_choice` names a function."""
    names: set[str] = set()
    for index, tool in enumerate(request.tools or ()):
        name, parameters = tool.function.name, tool.function.parameters
        if not TOOL_NAME.fullmatch(name) or name in names:
            raise Refused(
                f"Invalid 'tools[{index}]': expected a function with a unique name, at most 64 letters, digits, '_' and '-'.",
                f"tools[{index}].function.name",
            )
        if parameters and parameters.get("type") != "object":
            raise Refused(
                f"Invalid schema for function '{name}': schema must be a JSON Schema of 'type: \"object\"'.",
                f"tools[{index}].function.parameters",
                code="invalid_function_parameters",
            )
        names.add(name)
    choice = request.tool_choice
    if choice not in (None, "none") and not names:
        raise Refused(
            "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified.", "tool_choice"
        )
    if isinstance(choice, OfferedTool) and choice.function.name not in names:
        raise Refused("Invalid value for 'tool_choice': it does not name one of 'tools'.", "tool_choice")
