"""The model that plays: what it says follows from the name of the rollout, which stands as `cid` in its address.

Each persona is a function of (request, random numbers of this rollout and turn, the moves of the environment). A move is
`{"tool": {arguments}}` or plain words.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

Move = dict[str, dict[str, Any]] | str
Moves = Sequence[Move]


def _call(move: dict[str, dict[str, Any]]) -> dict[str, Any]:
    ((name, arguments),) = move.items()
    return {"name": name, "arguments": arguments}


def calls(request: Any, rng: random.Random, moves: Moves) -> Any:
    """One to three good calls, now and then with words and thoughts; plain words where the move is words."""
    move = rng.choice(moves)
    if isinstance(move, str):
        return move
    chosen = [move, *(one for one in rng.sample(moves, min(2, len(moves))) if isinstance(one, dict))]
    answer: dict[str, Any] = {"tool_calls": [_call(one) for one in chosen[: rng.choice((1, 1, 1, 2, 3))]]}
    if rng.random() < 0.3:
        answer["content"] = f"Turn {request.turn}: let me see … “{rng.randint(0, 99)}”"
    if rng.random() < 0.3:
        answer["reasoning_content"] = "It may be\nthat one."
    return answer


def text(request: Any, rng: random.Random, moves: Moves) -> Any:
    """An action in words, in many forms, some of which cannot be read."""
    move = rng.choice(moves)
    if isinstance(move, str):
        return move
    ((name, arguments),) = move.items()
    plain = json.dumps({"tool": name, "arguments": arguments})
    other = json.dumps({"tool": "another", "arguments": {}})
    tags = "".join(f"<{key}>{value}</{key}>" for key, value in arguments.items())
    forms = [
        plain,
        plain,
        f"I think so.\n```json\n{plain}\n```",
        json.dumps({"name": name, "args": arguments}),
        json.dumps({name: arguments}),
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>",
        f"<think>Perhaps {other}?</think> So: {plain}",
        f"<{name}>{tags}</{name}>",
        f"<function={name}>{json.dumps(arguments)}</function>",
        f"[{plain}, {plain}]",
        f"Either {plain} or {other}.",
        plain[:-3],
        "I would rather not say.",
        "",
    ]
    return rng.choice(forms)


def structured(request: Any, rng: random.Random, moves: Moves) -> Any:
    """The action as the schema asks for it, or JSON that breaks off."""
    move = rng.choice(moves)
    if isinstance(move, str):
        return move
    ((name, arguments),) = move.items()
    whole = json.dumps({"action": {"tool": name, "arguments": arguments}})
    return whole if rng.random() < 0.8 else rng.choice((whole[:-4], "{}", "words", json.dumps({"action": None})))


def bad(request: Any, rng: random.Random, moves: Moves) -> Any:
    """Half of the time what a weak model does."""
    move = rng.choice(moves)
    if isinstance(move, str) or rng.random() < 0.5:
        return calls(request, rng, moves)
    good = _call(move)
    name, arguments = good["name"], good["arguments"]
    return rng.choice(
        (
            {"tool_calls": [{"name": "not_there", "arguments": {}}]},
            {"tool_calls": [{"name": name, "arguments": json.dumps(arguments)[:-1] + ', "'}]},
            {"tool_calls": [{"name": name, "arguments": "[]"}]},
            {"tool_calls": [{"name": name, "arguments": ""}]},
            {"tool_calls": [{"name": name, "arguments": {**arguments, "nobody_asked": True}}]},
            {"tool_calls": [{"name": name, "arguments": {key: {"not": ["this"]} for key in arguments}}]},
            {"tool_calls": [{"name": name, "arguments": {key: str(value) for key, value in arguments.items()}}]},
            {"tool_calls": [{"name": name, "arguments": f"```json\n{json.dumps(arguments)}\n```"}]},
            {"tool_calls": [good] * 66},
            f"I would call {name} now.",
            {"content": "I cannot", "refusal": "I cannot help with that."},
            {"content": "It begins like th", "finish_reason": "length"},
            {"fault": "length"},
            None,
        )
    )


def refusing(request: Any, rng: random.Random, moves: Moves) -> Any:
    """Never does anything that can be done."""
    return rng.choice(("No.", {"tool_calls": [{"name": "not_there", "arguments": {"n": request.turn}}]}, None))


FAULTS = ("400", "401", "404", "422", "redirect", "context", "content_filter", "refusal", "blank")


def failing(request: Any, rng: random.Random, moves: Moves) -> Any:
    """Plays one good turn; then the endpoint fails for good, in a way that is not tried again, or answers nothing."""
    if request.turn == 0:
        return calls(request, rng, moves)
    return {"fault": FAULTS[int(str(request.cid).rsplit(".", 1)[1]) % len(FAULTS)]}


_asked: Counter[tuple[str, int]] = Counter()


def flaky(request: Any, rng: random.Random, moves: Moves) -> Any:
    """The first time that a turn is asked for the endpoint fails, and not again."""
    _asked[str(request.cid), request.turn] += 1
    if request.turn == 1 and _asked[str(request.cid), 1] == 1:
        return {"fault": rng.choice(("503", "500", "malformed", "truncated", "error_200"))}
    return calls(request, rng, moves)


PERSONAS: dict[str, Callable[[Any, random.Random, Moves], Any]] = {
    "calls": calls,
    "text": text,
    "structured": structured,
    "bad": bad,
    "refusing": refusing,
    "failing": failing,
    "flaky": flaky,
}


def player(scripts: dict[str, tuple[str, Moves]]) -> Callable[[Any], Any]:
    """The mock model's script: `scripts` has persona and moves by the rollout's name."""

    def answer(request: Any) -> Any:
        persona, moves = scripts[str(request.cid)]
        return PERSONAS[persona](request, random.Random(f"{request.cid}/{request.turn}"), moves)

    return answer


def customer(request: Any) -> Any:
    """The simulated user of the template `customer-service`."""
    said = ("Hi, I have a wish.", "My e-mail? I do not know.", "I want a refund, please.", "Many thanks. GOODBYE!")
    return said[min(request.turn, len(said) - 1)]
