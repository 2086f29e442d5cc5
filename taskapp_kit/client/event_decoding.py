"""Decoding of the events in the response to `POST /rollout`.

Each prompt repeats the conversation so far, so storing full prompts would take space quadratic in the number of turns.
`records/events.py` therefore stores each prompt as the difference from the previous one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Call = dict[str, Any]


def read_events(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the events in the response to `POST /rollout`, in order. The request must have set `record.return_trace`.

    A model call is the `answer` of an `answered` event or an item of its `details.earlier_calls`. If the endpoint
    returned token ids, each returned model call has the full `prompt_token_ids` in place of `prompt_prefix` and
    `prompt_token_ids_rest`. `answer` is not modified.

    Args:
        answer: The decoded JSON of the response.

    Raises:
        ValueError: The response has no events, or a prompt repeats more tokens than the previous model call has.
        KeyError: The object is not a response to `POST /rollout`.
        TypeError: The object is not a response to `POST /rollout`.
    """
    history = (answer["trajectories"][0].get("trace") or {}).get("event_history")
    if not history:
        raise ValueError("The response has no events. Set `record.return_trace` to true in the request.")
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
    """Return the model call with its full prompt, and its tokens. `known` are the tokens of the previous model call."""
    if "prompt_prefix" in call:
        call = dict(call)
        prefix, rest = call.pop("prompt_prefix"), call.pop("prompt_token_ids_rest")
        if not 0 <= prefix <= len(known):
            raise ValueError(
                f"A prompt repeats {prefix} tokens of the previous model call, which had only {len(known)}."
            )
        call["prompt_token_ids"] = known[:prefix] + rest
    prompt = call.get("prompt_token_ids")
    return call, known if prompt is None else [*prompt, *(call.get("token_ids") or ())]
