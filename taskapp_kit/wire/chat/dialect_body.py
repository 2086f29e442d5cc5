"""Helpers that translate other APIs to chat completions: they read, validate or reject the fields of a request."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from taskapp_kit.errors import FieldProblem, RequestError
from taskapp_kit.records.formatting import cut

Place = tuple[str | int, ...]
Body = Mapping[str, Any]

LONGEST_NAME = 40
"""The maximum length of a client's string in an error message, in characters."""


def wrong(place: Place, found: str, hint: str = "") -> RequestError:
    """Return the error for the field at `place`. found: a clause that follows the field's path."""
    shown = ".".join(map(str, place))
    return RequestError(f"{shown} {found}.", fields=(FieldProblem(("body", *place), found),), hint=hint)


def refuse(body: Body, members: Mapping[str, str]) -> None:
    """Raise RequestError if the body sets one of these fields. A null, false or empty field is accepted.

    members: maps each field's name to a hint.
    """
    for name, hint in members.items():
        if body.get(name):
            raise wrong((name,), "is not supported: calls are stateless, and this server only runs the model", hint)


def copied(body: Body, names: Collection[str]) -> dict[str, Any]:
    """Return a copy of the body with only these fields, without null values."""
    return {name: body[name] for name in names if body.get(name) is not None}


def entries(body: Body, name: str, place: Place = ()) -> Sequence[Body]:
    """Return the list of objects in a field, or an empty list if it is absent. Raises RequestError for another type."""
    value = body.get(name)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise wrong((*place, name), "should be a list")
    for index, entry in enumerate(value):
        if not isinstance(entry, dict):
            raise wrong((*place, name, index), "should be an object")
    return value


def text_of(body: Body, name: str, place: Place) -> str:
    """Return the string in a field. Raises RequestError if the field is absent or has another type."""
    value = body.get(name)
    if not isinstance(value, str):
        raise wrong((*place, name), "should be a string")
    return value


def unknown(value: Any) -> str:
    """Return the message for an item of an unsupported type."""
    return f"is of type {cut(str(value), LONGEST_NAME)!r}, which is not supported"


def chat_content(texts: Sequence[str]) -> str | list[dict[str, str]]:
    """Return the content of a chat message: the string itself if there is only one, else a list of text parts."""
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]


def assistant_message(texts: Sequence[str], calls: Sequence[Body]) -> dict[str, Any]:
    """Return a chat message of the assistant with these strings and tool calls."""
    message: dict[str, Any] = {"role": "assistant", "content": chat_content(texts) if texts else None if calls else ""}
    return {**message, "tool_calls": list(calls)} if calls else message


def chat_call(identity: str, name: str, arguments: str) -> dict[str, Any]:
    """Return a tool call in the format of chat messages. arguments: a JSON string."""
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def chat_tool(name: str, parameters: Any, description: Any) -> dict[str, Any]:
    """Return a tool in the format of chat requests."""
    function = {"name": name, "description": description, "parameters": parameters}
    return {
        "type": "function",
        "function": {member: value for member, value in function.items() if value is not None},
    }


def calls_of(message: Body) -> Sequence[Body]:
    """Return the tool calls in a chat message."""
    calls: Sequence[Body] = message.get("tool_calls") or ()
    return calls


def token_counts(completion: Body) -> tuple[int, int]:
    """Return the numbers of prompt and completion tokens, or 0 if the completion does not report them."""
    usage = completion.get("usage") or {}
    return int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)


def token_members(completion: Body) -> dict[str, Any]:
    """Return the fields of a completion that contain token ids and the version of the weights, if it has any."""
    choice = completion["choices"][0]
    return {
        **copied(completion, ("prompt_token_ids", "metadata")),
        **copied(choice, ("token_ids",)),
    }
