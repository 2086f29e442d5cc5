"""What the translations of other APIs to chat completions share: reading a request's members, and refusing them by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from taskapp_kit.errors import FieldProblem, RequestError
from taskapp_kit.records.words import cut

Place = tuple[str | int, ...]
Body = Mapping[str, Any]

LONGEST_NAME = 40
"""Letters of a client's own word in an error."""


def wrong(place: Place, found: str, hint: str = "") -> RequestError:
    """Return the refusal of a request because of the member at `place`."""
    shown = ".".join(map(str, place))
    return RequestError(f"{shown} {found}.", fields=(FieldProblem(("body", *place), found),), hint=hint)


def refuse(body: Body, members: Mapping[str, str]) -> None:
    """Raise RequestError if the body has one of these members, unless it is null, false or empty. members: name to hint."""
    for name, hint in members.items():
        if body.get(name):
            raise wrong((name,), "is not supported: calls are stateless, and nothing but the model runs here", hint)


def copied(body: Body, names: Collection[str]) -> dict[str, Any]:
    """Return the members of these names that the body has."""
    return {name: body[name] for name in names if body.get(name) is not None}


def entries(body: Body, name: str, place: Place = ()) -> Sequence[Body]:
    """Return a member that is a list of objects; none for an absent one. Raises RequestError."""
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
    """Return a member that is a text. Raises RequestError."""
    value = body.get(name)
    if not isinstance(value, str):
        raise wrong((*place, name), "should be a text")
    return value


def unknown(value: Any) -> str:
    """What an error says of a client's value that is none of ours."""
    return f"is of type {cut(str(value), LONGEST_NAME)!r}, which is not supported"


def chat_content(texts: Sequence[str]) -> str | list[dict[str, str]]:
    """Return texts as the content of a chat message: one as it is, several as parts."""
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]


def assistant_message(texts: Sequence[str], calls: Sequence[Body]) -> dict[str, Any]:
    """Return an answer as the assistant's chat message."""
    message: dict[str, Any] = {"role": "assistant", "content": chat_content(texts) if texts else None if calls else ""}
    return {**message, "tool_calls": list(calls)} if calls else message


def chat_call(identity: str, name: str, arguments: str) -> dict[str, Any]:
    """Return a call of a tool as chat messages have it. arguments: JSON."""
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def chat_tool(name: str, parameters: Any, description: Any) -> dict[str, Any]:
    """Return a tool as chat requests have it."""
    function = {"name": name, "description": description, "parameters": parameters}
    return {
        "type": "function",
        "function": {member: value for member, value in function.items() if value is not None},
    }


def calls_of(message: Body) -> Sequence[Body]:
    """Return the calls in a chat message."""
    calls: Sequence[Body] = message.get("tool_calls") or ()
    return calls


def token_counts(completion: Body) -> tuple[int, int]:
    """Return the numbers of prompt and completion tokens; 0 where the completion does not say."""
    usage = completion.get("usage") or {}
    return int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)


def token_members(completion: Body) -> dict[str, Any]:
    """Return the token ids in a completion, where they were requested, and the version of the weights."""
    choice = completion["choices"][0]
    return {
        **copied(completion, ("prompt_token_ids", "metadata")),
        **copied(choice, ("token_ids",)),
    }
