"""Events as an answer contains them: each model call with only the prompt tokens that are new in it.

A prompt mostly repeats the previous call's prompt and completion, so full prompts would make an answer grow with the
square of its turns. `client.read_events` restores them.
"""

from __future__ import annotations

from collections.abc import Iterable

from taskapp_kit.contract.content import Json


def event_history(events: Iterable[dict[str, Json]]) -> list[dict[str, Json]]:
    """Converts events (as `events.to_json` returns them) for an answer; the given events are not changed.

    The environment's private end state is left out. `event_type` is `environment` for a step, else the event's kind.
    For a model call after the first, `prompt_token_ids` is replaced by `prompt_prefix`, the number of leading tokens
    shared with the previous call's prompt and completion, and `prompt_token_ids_rest`, the tokens after these.
    """
    history, known = [], None
    for event in events:
        entry = {name: part for name, part in event.items() if name != "final_state"}
        entry["event_type"] = "environment" if entry["kind"] == "stepped" else entry["kind"]
        if entry["kind"] == "answered":
            entry["answer"], known = _shortened_answer(entry["answer"], known)
        history.append(entry)
    return history


def _shortened_answer(answer: dict[str, Json], known: list[int] | None) -> tuple[dict[str, Json], list[int] | None]:
    """The shortened answer, and the tokens of its last call; known: those of the previous call, None without one."""
    details = answer.get("details") or {}
    if "earlier_calls" in details:
        calls = []
        for call in details["earlier_calls"]:
            short, known = _shortened(call, known)
            calls.append(short)
        answer = {**answer, "details": {**details, "earlier_calls": calls}}
    return _shortened(answer, known)


def _shortened(call: dict[str, Json], known: list[int] | None) -> tuple[dict[str, Json], list[int] | None]:
    prompt = call.get("prompt_token_ids")
    if prompt is None:
        return call, known
    tokens = [*prompt, *(call.get("token_ids") or ())]
    if known is not None:
        prefix = _common_prefix(known, prompt)
        call = {name: part for name, part in call.items() if name != "prompt_token_ids"}
        call |= {"prompt_prefix": prefix, "prompt_token_ids_rest": prompt[prefix:]}
    return call, tokens


def _common_prefix(one: list[int], two: list[int]) -> int:
    shorter = min(len(one), len(two))
    if one[:shorter] == two[:shorter]:
        return shorter
    return next(index for index in range(shorter) if one[index] != two[index])
