"""Requests as a client writes them, and streams put together as a client does."""

from __future__ import annotations

from typing import Any

import httpx

CLIENT = httpx.Client(timeout=10)
"""One for all: a client costs twenty milliseconds to make."""
ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {
            "type": "object",
            "properties": {"amount": {"enum": [1, 2, 3]}, "why": {"type": "string", "minLength": 1}},
            "required": ["amount", "why"],
            "additionalProperties": False,
        },
    },
}
STOP: dict[str, Any] = {
    "type": "function",
    "function": {"name": "stop", "parameters": {"type": "object", "properties": {}}},
}


def body(*said: str | dict[str, Any], **more: Any) -> dict[str, Any]:
    """A request: words are the user's."""
    messages = [{"role": "user", "content": one} if isinstance(one, str) else one for one in said or ("hello",)]
    return {"model": "mock", "messages": messages, **more}


def ask(url: str, *said: str | dict[str, Any], client: httpx.Client | None = None, **more: Any) -> dict[str, Any]:
    """The answer's JSON; the status must be 200."""
    answer = (client or CLIENT).post(f"{url}/chat/completions", json=body(*said, **more))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def together(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """The one answer that the chunks add up to, in the form of a plain one."""
    choices: dict[int, dict[str, Any]] = {}
    whole: dict[str, Any] = {key: chunks[0][key] for key in ("id", "model", "created")}
    for chunk in chunks:
        for key in ("prompt_token_ids", "metadata"):
            if key in chunk:
                whole[key] = chunk[key]
        if chunk.get("usage"):
            assert chunk["choices"] == []
            whole["usage"] = chunk["usage"]
        for part in chunk["choices"]:
            choice = choices.setdefault(
                part["index"], {"index": part["index"], "message": {"content": None, "refusal": None}}
            )
            _add(choice, part)
    whole["choices"] = [choices[index] for index in sorted(choices)]
    return whole


def _add(choice: dict[str, Any], part: dict[str, Any]) -> None:
    message = choice["message"]
    for key, value in part["delta"].items():
        if key == "tool_calls":
            calls = message.setdefault("tool_calls", [])
            for piece in value:
                if piece["index"] == len(calls):
                    calls.append({"id": piece["id"], "type": piece["type"], "function": dict(piece["function"])})
                else:
                    calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
        elif key == "role":
            message["role"] = value
        elif value:
            message[key] = (message.get(key) or "") + value
    choice["finish_reason"] = part["finish_reason"]
    if "token_ids" in part:
        choice["token_ids"] = choice.get("token_ids", []) + part["token_ids"]
    choice.setdefault("logprobs", None)
    if part["logprobs"] is not None:
        if choice["logprobs"] is None:
            choice["logprobs"] = {"content": [], "refusal": None}
        choice["logprobs"]["content"] += part["logprobs"]["content"]
