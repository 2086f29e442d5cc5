"""A request for a chat completion: checked as strictly as by the strictest vendor, and easy to read for a script."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from taskapp_kit.contract.seeds import derived_rng

ROLES = ("system", "developer", "user", "assistant", "tool")
TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Refused(Exception):
    """The request is answered with an error object. param: the wrong parameter. code: the vendor's error code."""

    def __init__(self, message: str, param: str | None = None, *, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a script is given. attempt: how often the same conversation came before (0 the first time).

    path, query: as asked for, so `/rollouts/{id}/v1/chat/completions` and `cid=…` can be read. headers: names in lower case.
    digest: SHA-256 (hex) of the messages. seed: the server's. choice: which of the `n` answers is wanted.
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
        found: list[dict[str, Any]] = self.body["messages"]
        return found

    @property
    def turn(self) -> int:
        """The number of answers in the conversation: 0 for the first turn."""
        return sum(message["role"] == "assistant" for message in self.messages)

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The functions on offer: name, description, parameters; none when `tool_choice` is `none`."""
        if self.body.get("tool_choice") == "none":
            return []
        named = self.named_tool
        offered = [item["function"] for item in self.body.get("tools") or ()]
        return [function for function in offered if named is None or function["name"] == named]

    @property
    def named_tool(self) -> str | None:
        """The one function that `tool_choice` names."""
        choice = self.body.get("tool_choice")
        return str(choice["function"]["name"]) if isinstance(choice, Mapping) else None

    @property
    def last_text(self) -> str:
        """The text of the last message that is not the assistant's, which is to be answered."""
        return next((text_of(item) for item in reversed(self.messages) if item["role"] != "assistant"), "")

    @property
    def text(self) -> str:
        """All words of the conversation, a blank line between messages."""
        return "\n\n".join(map(text_of, self.messages))

    @property
    def cid(self) -> str | None:
        """The correlation id in the query."""
        return parse_qs(self.query).get("cid", [None])[0]

    def rng(self, purpose: str = "answer") -> random.Random:
        """A random generator derived from the conversation, the request's `seed` and the choice, equal in every process."""
        return derived_rng("mock-model", self.seed, purpose, self.digest, str(self.body.get("seed")), self.choice)


def text_of(message: Mapping[str, Any]) -> str:
    """A message's words, pictures left out."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if part.get("type") == "text")
    return content or ""


def check(body: Any) -> None:
    """Raises Refused where a vendor would answer 400."""
    if not isinstance(body, dict):
        raise Refused("We could not parse the JSON body of your request: it is not an object.")
    _check_messages(body.get("messages"))
    names = _check_tools(body.get("tools"))
    _check_choice(body.get("tool_choice"), names)
    _check_format(body.get("response_format"))
    for name, low, high in (("temperature", 0, 2), ("top_p", 0, 1)):
        value = body.get(name)
        if value is not None and (not isinstance(value, int | float) or not low <= value <= high):
            raise Refused(f"Invalid '{name}': a number from {low} to {high} was expected.", name)
    for name, least, most in (
        ("n", 1, 128),
        ("max_tokens", 1, 2**31),
        ("max_completion_tokens", 1, 2**31),
        ("top_logprobs", 0, 20),
    ):
        value = body.get(name)
        if value is not None and (type(value) is not int or not least <= value <= most):
            raise Refused(f"Invalid '{name}': an integer from {least} to {most} was expected.", name)
    for name in ("stream", "logprobs", "parallel_tool_calls", "return_token_ids"):
        if not isinstance(body.get(name), bool | None):
            raise Refused(f"Invalid type for '{name}': expected a boolean.", name)
    if body.get("top_logprobs") and not body.get("logprobs"):
        raise Refused("The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.", "top_logprobs")
    if not isinstance(body.get("stream_options"), dict | None):
        raise Refused("Invalid type for 'stream_options': expected an object.", "stream_options")
    if body.get("stream_options") is not None and not body.get("stream"):
        raise Refused("The 'stream_options' parameter is only allowed when 'stream' is enabled.", "stream_options")


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list) or not messages:
        raise Refused("Invalid 'messages': a list with at least one message was expected.", "messages")
    open_calls: set[str] = set()
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ROLES:
            raise Refused(f"Invalid '{where}.role': one of {', '.join(ROLES)} was expected.", f"{where}.role")
        if role == "tool":
            answered = message.get("tool_call_id")
            if not isinstance(answered, str) or answered not in open_calls:
                raise Refused(
                    "Messages with role 'tool' must be a response to a preceding message with 'tool_calls': "
                    f"'{where}.tool_call_id' names no open call.",
                    f"{where}.tool_call_id",
                )
            open_calls.discard(answered)
        elif open_calls:
            break
        _check_content(message, where)
        if message.get("tool_calls") is not None:
            open_calls = _check_calls(message, where)
    if open_calls:
        raise Refused(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
            f"Without a response: {', '.join(sorted(open_calls))}.",
            "messages",
        )


def _check_content(message: dict[str, Any], where: str) -> None:
    if not isinstance(message.get("refusal"), str | None):
        raise Refused(f"Invalid '{where}.refusal': a string was expected.", f"{where}.refusal")
    content = message.get("content")
    if isinstance(content, str):
        return
    if isinstance(content, list) and content:
        for at, part in enumerate(content):
            kind = part.get("type") if isinstance(part, dict) else None
            right = isinstance(part.get("text"), str) if kind == "text" else isinstance(kind, str)
            if kind == "image_url":
                image = part.get("image_url")
                right = isinstance(image, dict) and isinstance(image.get("url"), str)
            if not right:
                raise Refused(f"Invalid '{where}.content[{at}]': a content part was expected.", f"{where}.content")
        return
    spoken = message.get("tool_calls") or message.get("refusal") or message.get("reasoning_content")
    if content is None and message["role"] == "assistant" and spoken:
        return
    raise Refused(f"Invalid '{where}.content': a string or a list of parts was expected.", f"{where}.content")


def _check_calls(message: dict[str, Any], where: str) -> set[str]:
    """The ids of a message's calls."""
    calls = message["tool_calls"]
    if message["role"] != "assistant" or not isinstance(calls, list) or not calls:
        raise Refused(f"Invalid '{where}.tool_calls': calls of an assistant were expected.", f"{where}.tool_calls")
    found: set[str] = set()
    for at, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if (
            not isinstance(function, dict)
            or call.get("type") != "function"
            or not isinstance(call.get("id"), str)
            or call["id"] in found
            or not isinstance(function.get("name"), str)
            or not isinstance(function.get("arguments"), str)
        ):
            raise Refused(
                f"Invalid '{where}.tool_calls[{at}]': an id of its own, the type 'function' and a function with a name "
                "and arguments (a string) were expected.",
                f"{where}.tool_calls",
            )
        found.add(call["id"])
    return found


def _check_tools(tools: Any) -> set[str] | None:
    """The functions' names; None when there are none."""
    if tools is None:
        return None
    if not isinstance(tools, list) or not tools:
        raise Refused("Invalid 'tools': a list with at least one tool was expected.", "tools")
    names: set[str] = set()
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not TOOL_NAME.fullmatch(name) or name in names:
            raise Refused(
                f"Invalid 'tools[{index}]': a function with a name of its own, of at most 64 letters, digits, '_' and '-', "
                "was expected.",
                f"tools[{index}].function.name",
            )
        parameters = function.get("parameters") if function is not None else None
        if not isinstance(parameters, dict | None) or (parameters and parameters.get("type") != "object"):
            raise Refused(
                f"Invalid schema for function '{name}': schema must be a JSON Schema of 'type: \"object\"'.",
                f"tools[{index}].function.parameters",
                code="invalid_function_parameters",
            )
        names.add(name)
    return names


def _check_choice(choice: Any, names: set[str] | None) -> None:
    if choice is None:
        return
    if names is None and choice != "none":
        raise Refused(
            "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified.", "tool_choice"
        )
    if choice in ("none", "auto", "required"):
        return
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    if not isinstance(function, dict) or function.get("name") not in list(names or ()):
        raise Refused(
            "Invalid value for 'tool_choice': 'none', 'auto', 'required' or one of 'tools' was expected.", "tool_choice"
        )


def _check_format(form: Any) -> None:
    if form is None:
        return
    kind = form.get("type") if isinstance(form, dict) else None
    if kind not in ("text", "json_object", "json_schema"):
        raise Refused(
            "Invalid 'response_format.type': text, json_object or json_schema was expected.", "response_format"
        )
    if kind == "json_schema":
        inner = form.get("json_schema")
        if (
            not isinstance(inner, dict)
            or not isinstance(inner.get("name"), str)
            or not isinstance(inner.get("schema"), dict)
        ):
            raise Refused(
                "Missing 'response_format.json_schema': a name and a schema were expected.", "response_format"
            )
