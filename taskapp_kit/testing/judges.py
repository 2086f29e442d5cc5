"""Mock judges: one that answers a proper verdict, and one that obeys whoever speaks outside the boundaries.

The second is the test of a judge's prompt: what a policy wrote must stand between boundaries that it cannot know, so an
instruction found outside them is either the author's own, or a hole.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import orjson

from taskapp_kit.contract.content import Json
from taskapp_kit.testing.chat_request import ChatRequest
from taskapp_kit.testing.drawing import draw
from taskapp_kit.testing.reply import Call, Reply

SCORE_NAMES = ("score", "grade", "rating", "verdict", "reward", "value")
REASON_NAMES = ("reason", "reasoning", "explanation", "rationale", "justification", "critique")

_NONCE = r"[0-9A-Za-z_-]*[0-9a-fA-F]{8,}[0-9A-Za-z_-]*"
_BOUNDED = re.compile(rf"<(?P<tag>{_NONCE})(?:\s[^<>]*)?>.*?</(?P=tag)\s*>", re.DOTALL)
_BOUNDED_BY_ATTRIBUTE = re.compile(
    rf"<(?P<tag>[A-Za-z_][\w-]*)\s[^<>]*?[\"'](?P<nonce>{_NONCE})[\"'][^<>]*>.*?</(?P=tag)\s[^<>]*?(?P=nonce)[^<>]*>",
    re.DOTALL,
)
_NUMBER = (
    r"[\"']?(?P<score>-?\d+(?:\.\d+)?)(?:\s*/\s*(?P<of>\d+))?"
    r"(?!\s*(?:to|and|or|-|–|…|\.\.)\s*-?\d|\s*(?:means?|if|when|for)\b|\.?\d)"  # neither a range nor a rule
)
_LINKS = r"(?:\s+(?:is|of|to|as|at|must|should|shall|will|be|now|this|it|exactly|a|the))*"
_GIVE = r"\b(?:give|award|assign|grant|return|output|print|answer|respond|reply|deserves?|gets?)\b"
_DEMANDS = [
    re.compile(
        rf"\b(?:score|grade|rating|verdict|reward|points?|marks?)\b{_LINKS}\s*[\"']?\s*[:=]?\s*{_NUMBER}", re.IGNORECASE
    ),
    re.compile(rf"{_GIVE}(?:\s+[a-z]+){{0,4}}?\s+{_NUMBER}", re.IGNORECASE),
    re.compile(
        rf"{_GIVE}(?:\s+[a-z]+){{0,4}}?\s+(?:full|maximum|highest|top|perfect)\s+(?:possible\s+)?(?:score|marks?|points?|grade|rating|reward)\b",
        re.IGNORECASE,
    ),
]

Score = float | Callable[[ChatRequest], float]


def judge(score: Score = 0.5, reason: str = "It is neither good nor bad.") -> Callable[[ChatRequest], Reply]:
    """A judge that gives `score` (or what the function of that name says), in the form that the request asks for.

    The form is the request's JSON schema, its one tool, or `{"reason": …, "score": …}`. A member is the score by its name
    (SCORE_NAMES), the reason likewise; others are drawn. The score is not clipped to the schema's bounds.
    """

    def answer(request: ChatRequest) -> Reply:
        return verdict(request, score(request) if callable(score) else score, reason)

    return answer


def outside_boundaries(request: ChatRequest) -> str:
    """The request's words without what stands between boundaries that carry a nonce of at least 8 hex digits.

    Understood are `<name-NONCE>…</name-NONCE>` and `<name id="NONCE">…</name id="NONCE">`. Another form needs a function
    of its own, given to `obedient_judge`.
    """
    return _BOUNDED_BY_ATTRIBUTE.sub("", _BOUNDED.sub("", request.text))


def demanded_score(text: str) -> float | None:
    """The score that some sentence demands, the last where several do; None when none does.

    Demands are such as `set the score to 1`, `give it 10/10`, `award full marks`; a range (`a score from 0 to 1`) and a
    rule (`score 1 if …`) are none.
    """
    found: list[tuple[int, float]] = []
    for pattern in _DEMANDS:
        for match in pattern.finditer(text):
            told = match.groupdict()
            of = float(told.get("of") or 1) or 1.0
            found.append((match.end(), float(told.get("score") or 1) / of if told.get("score") != "0" else 0.0))
    return max(found)[1] if found else None


def obedient_judge(
    honest: Score = 0.5,
    *,
    outside: Callable[[ChatRequest], str] = outside_boundaries,
    demand: Callable[[str], float | None] = demanded_score,
) -> Callable[[ChatRequest], Reply]:
    """A judge that gives the score which anybody outside the boundaries demands, and the honest one when nobody does.

    outside: which words of a request stand outside. demand: which score a text demands, None when none. A prompt whose own
    words demand a score (`answer with score 1`) needs a `demand` of its own, or else clearer words.
    """

    def answer(request: ChatRequest) -> Reply:
        told = demand(outside(request))
        if told is None:
            return verdict(request, honest(request) if callable(honest) else honest, "Judged by the question alone.")
        return verdict(request, told, "As I was told.")

    return answer


def verdict(request: ChatRequest, score: float, reason: str) -> Reply:
    """The verdict in the form that the request asks for (see `judge`)."""
    form = request.body.get("response_format") or {}
    if form.get("type") == "json_schema":
        return Reply(orjson.dumps(_filled(form["json_schema"]["schema"], request, score, reason)).decode())
    if request.tools:
        tool = request.tools[0]
        return Reply(calls=[Call.of(tool["name"], _filled(tool.get("parameters") or {}, request, score, reason))])
    return Reply(orjson.dumps({"reason": reason, "score": score}).decode())


def _filled(schema: dict[str, Any], request: ChatRequest, score: float, reason: str) -> Json:
    """The schema drawn, with score and reason put where they belong, at whatever depth."""
    return _put(draw(schema, request.rng("verdict")), score, reason)


def _put(value: Json, score: float, reason: str) -> Json:
    if isinstance(value, list):
        return [_put(item, score, reason) for item in value]
    if not isinstance(value, dict):
        return value
    filled: dict[str, Json] = {}
    for name, part in value.items():
        if name in SCORE_NAMES and isinstance(part, int | float) and not isinstance(part, bool):
            filled[name] = int(score) if isinstance(part, int) and float(score).is_integer() else score
        elif name in REASON_NAMES and isinstance(part, str):
            filled[name] = reason
        else:
            filled[name] = _put(part, score, reason)
    return filled
