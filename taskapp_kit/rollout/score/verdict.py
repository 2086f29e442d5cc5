"""The schema of a verdict, and a strict parser for the model's reply.

The verdict on one question is `{"reason": …, "score": …}`. The verdict on several questions is an object that maps the name
of each question to such an object. The reason comes first, so that the model writes it before the number. A question with
choices has `choice` instead of `score`.
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
"""The maximum number of characters in a reply. Longer replies are rejected."""
_THOUGHTS = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
_FENCED = re.compile(r"```(?:json|JSON)?[ \t]*\n(?P<body>.*)\n[ \t]*```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Question:
    """A question about the material. name: the field in the verdict if there are several questions.

    scale: the lowest and the highest score. choices: words from worst to best, which are spread evenly over the scale and
    replace the number.
    """

    name: str
    text: str
    scale: tuple[float, float] = (0.0, 1.0)
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one question: a score within the scale, and the reason."""

    score: float
    reason: str


class UnreadableVerdict(ValueError):
    """A reply is not a valid verdict. The message gives the reason, without text from the reply."""


def schema(questions: Sequence[Question], *, named: bool) -> dict[str, Json]:
    """Return the JSON Schema of a verdict for strict output. The schema describes the range, and `read_verdicts` checks it."""
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
    """Return the scale as a string for the prompt."""
    return f"from {question.scale[0]:g}, the worst, to {question.scale[1]:g}, the best"


def read_verdicts(message: dict[str, Any], questions: Sequence[Question], *, named: bool) -> dict[str, Verdict]:
    """Parse the verdicts in a message, by question. Never guesses or clamps. Raises UnreadableVerdict if one is invalid."""
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
    """Parse the reply as one JSON value, with or without a code fence. Other text is rejected, as it could quote the policy."""
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
    if not scale[0] <= given <= scale[1]:  # before float(), because an integer may exceed the range of a float
        raise UnreadableVerdict("its score lay outside the scale")
    score = float(given)
    if not math.isfinite(score):
        raise UnreadableVerdict("its score was not finite")
    return score
