"""Events as they stand in an answer: each model call with the prompt tokens that are new in it.

A prompt mostly repeats the prompt and the completion of the call before, so whole prompts would make an answer grow with
the square of its turns. `client.read_events` gives them whole again.
"""

from __future__ import annotations

from collections.abc import Iterable

from taskapp_kit.contract.content import Json


def event_history(events: Iterable[dict[str, Json]]) -> list[dict[str, Json]]:
    """The events (as `events.to_json` gives them) as an answer has them; the given ones are not changed.

    The environment's private end state is left out. `event_type` is `environment` for a step, else the event's kind.
    Of a model call after the first, `prompt_token_ids` is replaced by `prompt_prefix`, how many tokens it has in common
    with the previous call's prompt and completion from the start, and `prompt_token_ids_rest`, the tokens after these.
    """
    history, known = [], None
    for event in events:
        told = {name: part for name, part in event.items() if name != "final_state"}
        told["event_type"] = "environment" if told["kind"] == "stepped" else told["kind"]
        if told["kind"] == "answered":
            told["answer"], known = _shortened_answer(told["answer"], known)
        history.append(told)
    return history


def _shortened_answer(answer: dict[str, Json], known: list[int] | None) -> tuple[dict[str, Json], list[int] | None]:
    """The answer, and the tokens of its last call; known: those of the call before, None without one."""
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
    return next(place for place in range(shorter) if one[place] != two[place])
