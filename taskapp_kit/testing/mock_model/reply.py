"""A reply of the mock model before it is encoded, and its formats in scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import orjson

from taskapp_kit.errors import ConfigError
from taskapp_kit.records.content import Json


@dataclass(slots=True)
class Call:
    """A tool call.

    Attributes:
        name: The tool's name.
        arguments: The string to send. It is usually JSON, but tests may use any string.
    """

    name: str
    arguments: str

    @classmethod
    def of(cls, name: str, arguments: Json) -> Self:
        """Return a call with the arguments encoded as JSON. If `arguments` is a string, it is sent unchanged."""
        return cls(name, arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode())


@dataclass(slots=True)
class Reply:
    """A reply of the model.

    Attributes:
        content: The text.
        calls: The tool calls.
        reasoning: The text of `reasoning_content`.
        refusal: The text of `refusal`.
        finish_reason: The finish reason. If it is None, the reason is `tool_calls` if there are calls, and `stop`
            otherwise.
        fault: A kind of fault to send instead of the reply; see FAULTS.
    """

    content: str | None = None
    calls: list[Call] = field(default_factory=list)
    reasoning: str | None = None
    refusal: str | None = None
    finish_reason: str | None = None
    fault: str | None = None

    @property
    def finish(self) -> str:
        """The finish reason that is sent."""
        return self.finish_reason or ("tool_calls" if self.calls else "stop")


def reply_of(given: Any) -> Reply:
    """Convert a script's answer to a Reply.

    Args:
        given: A Reply, a string, `{"tool": {args}}` with one or several tools, `{"fault": "429"}`, or None for an
            empty reply. An assistant message from the API, with `content`, `tool_calls`, `reasoning_content`,
            `refusal` and `finish_reason`, is also accepted.

    Raises:
        ConfigError: The answer has a different format.
    """
    if isinstance(given, Reply):
        return given
    if given is None:
        return Reply()
    if isinstance(given, str):
        return Reply(given)
    if isinstance(given, Mapping):
        if given.keys() & {"content", "tool_calls", "reasoning_content", "refusal", "fault", "finish_reason"}:
            return _message(given)
        if given and all(isinstance(value, Mapping) for value in given.values()):
            return Reply(calls=[Call.of(str(name), dict(value)) for name, value in given.items()])
    raise ConfigError(
        f"An answer in the script is invalid: {type(given).__name__} {str(given)[:80]!r}.",
        hint='Use a string, {"tool": {arguments}}, or a message with content and tool_calls.',
    )


def _message(given: Mapping[str, Any]) -> Reply:
    calls = []
    for item in given.get("tool_calls") or ():
        function = item.get("function", item) if isinstance(item, Mapping) else {}
        if not isinstance(function, Mapping) or "name" not in function:
            raise ConfigError(
                f"A tool call in the script has no name: {str(item)[:80]!r}.",
                hint='Write {"name": "tool", "arguments": {…}}.',
            )
        calls.append(Call.of(str(function["name"]), function.get("arguments", {})))
    return Reply(
        content=given.get("content"),
        calls=calls,
        reasoning=given.get("reasoning_content"),
        refusal=given.get("refusal"),
        finish_reason=given.get("finish_reason"),
        fault=given.get("fault"),
    )
