"""Decodes the events of a response of `POST /rollout`.

Each prompt there is the difference from the one before: every prompt repeats the conversation so far, so whole prompts
would grow with the square of the turns. `records/events.py` shortens them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Call = dict[str, Any]


def read_events(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the events of a response of `POST /rollout` whose request had `record.return_trace`, in order.

    Every model call (`answer` of an `answered` event, and each of its `details.earlier_calls`) has its full
    `prompt_token_ids` again, where the endpoint gave token ids; `prompt_prefix` and `prompt_token_ids_rest` are removed.
    The response is not changed.

    Args:
        answer: The response's JSON.

    Raises:
        ValueError: The response has no events, or its prompts do not fit together.
        KeyError: It is not such a response.
        TypeError: It is not such a response.
    """
    history = (answer["trajectories"][0].get("trace") or {}).get("event_history")
    if not history:
        raise ValueError("this answer has no events: send the request with record.return_trace true")
    events: list[dict[str, Any]] = []
    known: list[int] = []
    for event in history:
        if event["kind"] == "answered":
            model_call, details = event["answer"], event["answer"].get("details") or {}
            if "earlier_calls" in details:
                calls = []
                for call in details["earlier_calls"]:
                    whole, known = _whole(call, known)
                    calls.append(whole)
                model_call = {**model_call, "details": {**details, "earlier_calls": calls}}
            model_call, known = _whole(model_call, known)
            event = {**event, "answer": model_call}
        events.append(event)
    return events


def _whole(call: Call, known: list[int]) -> tuple[Call, list[int]]:
    """Return the call with its whole prompt, and its tokens. known: the tokens of the previous call."""
    if "prompt_prefix" in call:
        call = dict(call)
        prefix, rest = call.pop("prompt_prefix"), call.pop("prompt_token_ids_rest")
        if not 0 <= prefix <= len(known):
            raise ValueError(f"a prompt repeats {prefix} tokens of the call before it, which has {len(known)}")
        call["prompt_token_ids"] = known[:prefix] + rest
    prompt = call.get("prompt_token_ids")
    return call, known if prompt is None else [*prompt, *(call.get("token_ids") or ())]
