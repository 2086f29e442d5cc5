"""The schema of a verdict, and a strict parser of the model's answer.

One question is answered with `{"reason": …, "score": …}`, several with an object of those, by name. The reason comes
first, so that the model writes it before the number. A question with choices is answered with `choice` instead of `score`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from taskapp_kit.records.content import Json

VERDICT_CHARACTERS = 65_536
"""A longer answer is rejected."""
_THOUGHTS = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
_FENCED = re.compile(r"```(?:json|JSON)?[ \t]*\n(?P<body>.*)\n[ \t]*```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Question:
    """A question about the material. name: the answer's member, where several are asked together.

    scale: lowest and highest score. choices: words from worst to best instead of a number, spread evenly over the scale.
    """

    name: str
    text: str
    scale: tuple[float, float] = (0.0, 1.0)
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one question: a score within its scale, and why."""

    score: float
    reason: str


class UnreadableVerdict(ValueError):
    """An answer is not a verdict. The message gives the reason, without any text of the answer."""


def schema(questions: Sequence[Question], *, named: bool) -> dict[str, Json]:
    """JSON Schema of the verdict for strict structured output. A range is only described in it, and checked by us."""
    if not named:
        return _answer_schema(questions[0])
    return _object({question.name: _answer_schema(question) for question in questions})


def _answer_schema(question: Question) -> dict[str, Json]:
    reason = {"type": "string", "description": "Why, in one to three sentences."}
    if question.choices:
        return _object({"reason": reason, "choice": {"type": "string", "enum": list(question.choices)}})
    return _object({"reason": reason, "score": {"type": "number", "description": f"A number {span(question)}."}})


def _object(properties: dict[str, Json]) -> dict[str, Json]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def span(question: Question) -> str:
    """Return the scale as text."""
    return f"from {question.scale[0]:g}, the worst, to {question.scale[1]:g}, the best"


def read_verdicts(message: dict[str, Any], questions: Sequence[Question], *, named: bool) -> dict[str, Verdict]:
    """Parse the verdicts in an assistant's message, by question. Raises UnreadableVerdict; guesses and clamps nothing."""
    if message.get("refusal"):
        raise UnreadableVerdict("it was a refusal")
    answer = _json(_text(message.get("content")))
    if not named:
        return {questions[0].name: _verdict(answer, questions[0])}
    if not isinstance(answer, dict) or set(answer) != {question.name for question in questions}:
        raise UnreadableVerdict("it was not an object with one answer for each question")
    return {question.name: _verdict(answer[question.name], question) for question in questions}


def _text(content: Any) -> str:
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        content = "".join(part for part in parts if isinstance(part, str))
    if not isinstance(content, str) or not content.strip():
        raise UnreadableVerdict("it was empty")
    if len(content) > VERDICT_CHARACTERS:
        raise UnreadableVerdict(f"it was longer than {VERDICT_CHARACTERS} characters")
    return content


def _json(text: str) -> Any:
    """Parse the text as one JSON value, in a code fence or not. Prose around it could be a quotation of the policy's text."""
    thoughts = _THOUGHTS.match(text)
    text = (text if thoughts is None else text[thoughts.end() :]).strip()
    fenced = _FENCED.fullmatch(text)
    try:
        return json.loads(
            text if fenced is None else fenced["body"], object_pairs_hook=_once, parse_constant=_no_constant
        )
    except UnreadableVerdict:
        raise
    except (ValueError, RecursionError):
        raise UnreadableVerdict("it was not JSON alone") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise UnreadableVerdict("it gave one name twice")
    return found


def _no_constant(_: str) -> Any:
    raise UnreadableVerdict("it held a number that is not finite")


def _verdict(answer: Any, question: Question) -> Verdict:
    member = "choice" if question.choices else "score"
    if not isinstance(answer, dict) or set(answer) != {"reason", member}:
        raise UnreadableVerdict(f"it was not an object with reason and {member} alone")
    reason, given = answer["reason"], answer[member]
    if not isinstance(reason, str) or not reason.strip():
        raise UnreadableVerdict("it gave no reason")
    if not question.choices:
        return Verdict(_score(given, question.scale), reason.strip())
    if not isinstance(given, str) or given not in question.choices:
        raise UnreadableVerdict("its choice was none of those on offer")
    lowest, highest = question.scale
    share = question.choices.index(given) / (len(question.choices) - 1)
    return Verdict(lowest + (highest - lowest) * share, reason.strip())


def _score(given: Any, scale: tuple[float, float]) -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise UnreadableVerdict("its score was not a number")
    if not scale[0] <= given <= scale[1]:  # before float(): an integer may exceed its range
        raise UnreadableVerdict("its score lay outside the scale")
    score = float(given)
    if not math.isfinite(score):
        raise UnreadableVerdict("its score was not finite")
    return score
