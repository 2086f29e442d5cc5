"""The events of an answer of `POST /rollout`, whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Call = dict[str, Any]


def read_events(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The events of an answer of `POST /rollout` that was asked for with `record.return_trace`, in order.

    Every model call (`answer` of an `answered` event, and each of its `details.earlier_calls`) has `prompt_token_ids` in
    full again, where the endpoint gave token ids; `prompt_prefix` and `prompt_token_ids_rest` are gone. The answer is
    not changed.

    Raises ValueError for an answer without events, and for one whose prompts do not fit together; KeyError or TypeError
    for what is no such answer.
    """
    history = (answer["trajectories"][0].get("trace") or {}).get("event_history")
    if not history:
        raise ValueError("this answer has no events: send the request with record.return_trace true")
    events: list[dict[str, Any]] = []
    known: list[int] = []
    for event in history:
        if event["kind"] == "answered":
            told, details = event["answer"], event["answer"].get("details") or {}
            if "earlier_calls" in details:
                calls = []
                for call in details["earlier_calls"]:
                    whole, known = _whole(call, known)
                    calls.append(whole)
                told = {**told, "details": {**details, "earlier_calls": calls}}
            told, known = _whole(told, known)
            event = {**event, "answer": told}
        events.append(event)
    return events


def _whole(call: Call, known: list[int]) -> tuple[Call, list[int]]:
    """The call with its whole prompt, and its tokens; known: those of the call before."""
    if "prompt_prefix" in call:
        call = dict(call)
        prefix, rest = call.pop("prompt_prefix"), call.pop("prompt_token_ids_rest")
        if not 0 <= prefix <= len(known):
            raise ValueError(f"a prompt repeats {prefix} tokens of the call before it, which has {len(known)}")
        call["prompt_token_ids"] = known[:prefix] + rest
    prompt = call.get("prompt_token_ids")
    return call, known if prompt is None else [*prompt, *(call.get("token_ids") or ())]
