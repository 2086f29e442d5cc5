"""Mock judges: `judge` returns a valid verdict, and `obedient_judge` obeys instructions outside of boundaries.

`obedient_judge` tests the prompt of a judge. The prompt must place the policy's text between boundaries that the
policy cannot predict. An instruction outside of boundaries is either the author's own instruction or a vulnerability.
"""

from __future__ import annotations

import ast
import hashlib
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import orjson

from taskapp_kit.records.content import Json
from taskapp_kit.records.json_schema import Schema, read_schema
from taskapp_kit.rollout.policy.sampling import Draw, FreeSampler
from taskapp_kit.testing.mock_model.chat_request import ChatRequest, Refused
from taskapp_kit.testing.mock_model.reply import Call, Reply

SCORE_NAMES = ("score", "grade", "rating", "verdict", "reward", "value")
CHOICE_NAMES = ("choice", *SCORE_NAMES)
REASON_NAMES = ("reason", "reasoning", "explanation", "rationale", "justification", "critique")

_NONCE = r"[0-9A-Za-z_-]*[0-9a-fA-F]{8,}[0-9A-Za-z_-]*"
_BOUNDED = re.compile(rf"<(?P<tag>{_NONCE})(?:\s[^<>]*)?>.*?</(?P=tag)\s*>", re.DOTALL)
_BOUNDED_BY_ATTRIBUTE = re.compile(
    rf"<(?P<tag>[A-Za-z_][\w-]*)\s[^<>]*?[\"'](?P<nonce>{_NONCE})[\"'][^<>]*>.*?</(?P=tag)\s[^<>]*?(?P=nonce)[^<>]*>",
    re.DOTALL,
)
_NUMBER = (
    r"[\"']?(?P<score>-?\d+(?:\.\d+)?)(?:\s*/\s*(?P<of>\d+))?"
    r"(?!\s*(?:to|and|or|-|–|…|\.\.)\s*-?\d|\s*(?:means?|if|when|for)\b|\.?\d)"  # excludes ranges and rules
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

_FORM = re.compile(r"of the form (?P<shape>\{.*\}), where(?P<rules>.*)", re.DOTALL)
_BLANK = re.compile(r"(?<=: )(?:WHY|NUMBER|WORD)\b")
_CHOICES = re.compile(r"WORD is one of (?P<choices>.+?), from worst to best")
"""Patterns for the format of verdicts in prompts from `rollout/score/judge_input.py`, for judges without a schema."""

Given = float | str
"""A score, or the name of a choice."""
Score = Given | Callable[[ChatRequest], Given]


def judge(score: Score = 0.5, reason: str = "It is neither good nor bad.") -> Callable[[ChatRequest], Reply]:
    """Return a behaviour that replies with a verdict in the format that the request requires.

    The format is the request's JSON schema, its first tool, or the format in the prompt of one of the kit's judges. If
    the request specifies no format, the reply is `{"reason": …, "score": …}`. The score and the reason are inserted
    into fields whose names are in SCORE_NAMES and REASON_NAMES, and all other fields have random values. A number is
    not clipped to the bounds of the schema. Requests that differ only in the nonces of boundaries receive the same
    verdict.

    Args:
        score: A number, the name of a choice, or a function from the request to a number or name. If the request has
            choices, a number from 0 to 1 selects a choice: 0 selects the worst and 1 the best. Other values cause a 400
            response.
        reason: The reason in each verdict.

    Returns:
        A behaviour for `MockModel(script)` or `play(judges=)`.
    """

    def answer(request: ChatRequest) -> Reply:
        known = without_nonces(request)
        return verdict(known, score(known) if callable(score) else score, reason)

    return answer


def without_nonces(request: ChatRequest) -> ChatRequest:
    """Return a copy of the request whose digest and random generator do not depend on the nonces of boundaries."""
    text = request.text
    drawn = {match["tag"] for match in _BOUNDED.finditer(text)}
    drawn |= {match["nonce"] for match in _BOUNDED_BY_ATTRIBUTE.finditer(text)}
    if not drawn:
        return request
    for part in sorted(drawn):
        text = text.replace(part, "-")
    return replace(request, digest=hashlib.sha256(text.encode()).hexdigest())


def outside_boundaries(request: ChatRequest) -> str:
    """Return the text of the request without the parts between boundaries. A nonce has at least 8 hexadecimal digits.

    Boundaries are `<name-NONCE>…</name-NONCE>` and `<name id="NONCE">…</name id="NONCE">`. For other boundaries, pass
    `outside` to `obedient_judge`.
    """
    return _BOUNDED_BY_ATTRIBUTE.sub("", _BOUNDED.sub("", request.text))


def demanded_score(text: str) -> float | None:
    """Return the last score that the text demands, or None if it demands no score.

    Examples of demands are `set the score to 1`, `give it 10/10` and `award full marks`. A range
    (`a score from 0 to 1`) and a rule (`score 1 if …`) are not demands.
    """
    found: list[tuple[int, float]] = []
    for pattern in _DEMANDS:
        for match in pattern.finditer(text):
            groups = match.groupdict()
            of = float(groups.get("of") or 1) or 1.0
            found.append((match.end(), float(groups.get("score") or 1) / of if groups.get("score") != "0" else 0.0))
    return max(found)[1] if found else None


def obedient_judge(
    honest: Score = 0.5,
    *,
    outside: Callable[[ChatRequest], str] = outside_boundaries,
    demand: Callable[[str], float | None] = demanded_score,
) -> Callable[[ChatRequest], Reply]:
    """Return a behaviour that replies with the score that the text outside of boundaries demands.

    Args:
        honest: Score if the text demands no score. It has the same types as `score` in `judge`.
        outside: Function that returns the text of a request outside of boundaries.
        demand: Function that returns the score that a text demands, or None if it demands no score. If the author's
            own prompt contains a demand, such as `answer with score 1`, change the prompt or pass another function.

    Returns:
        A behaviour for `MockModel(script)` or `play(judges=)`.
    """

    def answer(request: ChatRequest) -> Reply:
        demanded = demand(outside(request))
        known = without_nonces(request)
        if demanded is None:
            return verdict(known, honest(known) if callable(honest) else honest, "Judged by the question alone.")
        return verdict(known, demanded, "As I was told.")

    return answer


def verdict(request: ChatRequest, score: Given, reason: str) -> Reply:
    """Return a verdict in the format that the request requires; see `judge`. Raises Refused for an invalid score."""
    sampler, rng = VerdictSampler(score, reason), request.rng("verdict")
    form = request.body.get("response_format") or {}
    if form.get("type") == "json_schema":
        return Reply(orjson.dumps(sampler.verdict(form["json_schema"]["schema"], rng)).decode())
    if request.tools:
        tool = request.tools[0]
        return Reply(calls=[Call.of(tool["name"], sampler.verdict(tool.get("parameters") or {}, rng))])
    demanded = _FORM.search(outside_boundaries(request))
    if demanded is not None:
        return Reply(_written(demanded["shape"], demanded["rules"], score, reason))
    member = "choice" if isinstance(score, str) else "score"
    return Reply(orjson.dumps({"reason": reason, member: score}).decode())


def _written(shape: str, rules: str, score: Given, reason: str) -> str:
    """Return the template of a verdict with its placeholders filled in."""
    choices = iter([ast.literal_eval(f"[{match['choices']}]") for match in _CHOICES.finditer(rules)])

    def fill(blank: re.Match[str]) -> str:
        given = reason if blank[0] == "WHY" else _chosen(next(choices), score) if blank[0] == "WORD" else _number(score)
        return orjson.dumps(given).decode()

    return _BLANK.sub(fill, shape)


def _number(score: Given) -> float:
    if isinstance(score, str):
        raise Refused(f"The score of the mock judge is the choice {score!r}, but this request requires a number.")
    return score


def _chosen(choices: Sequence[str], score: Given) -> str:
    """Return the choice for the score; see `judge`. Raises Refused if no choice matches.

    The choices are in order from worst to best.
    """
    if isinstance(score, str):
        if score in choices:
            return score
        raise Refused(f"The score of the mock judge is {score!r}, which is not one of {', '.join(map(repr, choices))}.")
    if not 0 <= score <= 1:
        raise Refused(f"The score of the mock judge is {score:g}, but this request requires a score from 0 to 1.")
    return choices[int(score * (len(choices) - 1) + 0.5)]


class VerdictSampler(FreeSampler):
    """Draws random values for a schema, but inserts the given score, choice and reason at any depth."""

    def __init__(self, score: Given, reason: str) -> None:
        self._score, self._reason = score, reason

    def verdict(self, schema: Json, rng: random.Random) -> Json:
        """Draw a value that matches the schema."""
        return self.compiled(read_schema(schema), "value", 0)(rng)

    def part(self, schema: Schema, name: str, depth: int) -> Draw:
        """Return the function that draws a part. A part with the name of a score, choice or reason gets the given value."""
        value = self._decided(schema, name)
        return super().part(schema, name, depth) if value is None else lambda rng: value

    def _decided(self, schema: Schema, name: str) -> Json:
        choices, kind = schema.choices, schema.kind
        texts = [choice for choice in choices if isinstance(choice, str)]
        if name in CHOICE_NAMES and texts and len(texts) == len(choices):
            return _chosen(texts, self._score)
        if name in REASON_NAMES and kind == "string":
            return self._reason
        if name in SCORE_NAMES and (kind in ("integer", "number") or (choices and not texts)):
            number = _number(self._score)
            return int(number) if kind == "integer" and float(number).is_integer() else number
        return None
