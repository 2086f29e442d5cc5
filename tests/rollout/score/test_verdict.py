"""Verdicts: read strictly, or not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest

from taskapp_kit.rollout.score.verdict import Question, UnreadableVerdict, Verdict, read_verdicts, schema

QUESTION = Question("q", "Is it good?", (0.0, 1.0))
GOOD = json.dumps({"reason": "Fine.", "score": 0.5})
SENTINEL = "sentinel-of-the-answer"

GARBAGE: dict[str, Any] = {
    "prose": f"I would give it a 0.7. {SENTINEL}",
    "prose around JSON": f"Here is my verdict:\n{GOOD}",
    "prose after JSON": f"{GOOD}\nI hope that helps.",
    "prose around a fence": 'The answer said ```json\n{"reason": "x", "score": 1}\n``` but it is bad.',
    "two fences": f"```json\n{GOOD}\n```\n```json\n{GOOD}\n```",
    "two objects": f"{GOOD}\n{GOOD}",
    "two scores": '{"reason": "x", "score": 0, "score": 1}',
    "score and a second one": '{"reason": "x", "score": 0, "score2": 1}',
    "a list of scores": '{"reason": "x", "score": [0.5]}',
    "NaN": '{"reason": "x", "score": NaN}',
    "Infinity": '{"reason": "x", "score": Infinity}',
    "an overflow": '{"reason": "x", "score": 1e999}',
    "a huge integer": '{"reason": "x", "score": ' + "9" * 400 + "}",
    "an integer beyond Python": '{"reason": "x", "score": ' + "9" * 5000 + "}",
    "a string": '{"reason": "x", "score": "0.5"}',
    "a word": '{"reason": "x", "score": "high"}',
    "true": '{"reason": "x", "score": true}',
    "null": '{"reason": "x", "score": null}',
    "an object": '{"reason": "x", "score": {"value": 1}}',
    "above": '{"reason": "x", "score": 1.0000001}',
    "below": '{"reason": "x", "score": -0.1}',
    "per cent": '{"reason": "x", "score": 85}',
    "other keys": '{"rationale": "x", "grade": 0.5}',
    "no reason": '{"score": 0.5}',
    "an empty reason": '{"reason": " ", "score": 0.5}',
    "a reason that is no text": '{"reason": 3, "score": 0.5}',
    "a bare number": "0.5",
    "a list": f"[{GOOD}]",
    "a string of JSON": json.dumps(GOOD),
    "empty": "",
    "blank": " \n\t",
    "None": None,
    "a number as content": 0.5,
    "truncated": GOOD[:-2],
    "truncated in a fence": f"```json\n{GOOD}",
    "one megabyte": json.dumps({"reason": "x" * 1_000_000, "score": 0.5}),
    "deep": "[" * 60_000,
    "single quotes": "{'reason': 'x', 'score': 0.5}",
    "a comment": '{"reason": "x", "score": 0.5} // sure',
    "thoughts only": "<think>0.5</think>",
    "thoughts that do not end": f"<think>{GOOD}",
    "content without text": [{"type": "image_url", "image_url": {"url": "data:"}}],
    "NUL": "\x00",
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_no_verdict(name: str) -> None:
    with pytest.raises(UnreadableVerdict) as caught:
        read_verdicts({"content": GARBAGE[name]}, [QUESTION], named=False)
    assert SENTINEL not in str(caught.value)
    assert str(caught.value).isascii()


def test_a_refusal_is_no_verdict() -> None:
    with pytest.raises(UnreadableVerdict, match="refusal"):
        read_verdicts({"content": GOOD, "refusal": "I cannot help with that."}, [QUESTION], named=False)


@pytest.mark.parametrize(
    "content",
    [
        GOOD,
        f"\n {GOOD} \n",
        f"```json\n{GOOD}\n```",
        f"```\n{GOOD}\n```",
        json.dumps({"score": 0.5, "reason": "Fine."}, indent=2),
        f"<think>Perhaps 1? ```json\n</think>\n{GOOD}",
        [{"type": "text", "text": GOOD[:9]}, {"type": "text", "text": GOOD[9:]}],
    ],
)
def test_a_verdict_in_each_form(content: Any) -> None:
    assert read_verdicts({"content": content}, [QUESTION], named=False) == {"q": Verdict(0.5, "Fine.")}


def test_the_ends_of_the_scale_count() -> None:
    question = Question("q", "?", (-5.0, 10.0))
    for score in (-5, 10, 0, 9.5):
        found = read_verdicts({"content": json.dumps({"reason": "x", "score": score})}, [question], named=False)
        assert found["q"].score == score
        assert type(found["q"].score) is float


def test_choices_are_spread_over_the_scale() -> None:
    question = Question("q", "?", (0.0, 10.0), ("bad", "ok", "good"))
    for choice, score in (("bad", 0.0), ("ok", 5.0), ("good", 10.0)):
        content = json.dumps({"reason": "x", "choice": choice})
        assert read_verdicts({"content": content}, [question], named=False)["q"].score == score
    for content in ({"choice": "Good"}, {"choice": "great"}, {"choice": 1}, {"choice": None}, {"score": 1}):
        with pytest.raises(UnreadableVerdict):
            read_verdicts({"content": json.dumps({"reason": "x", **content})}, [question], named=False)


def test_several_questions_in_one() -> None:
    questions = [QUESTION, Question("tone", "?", (0.0, 1.0), ("rude", "polite"))]
    answer = {"q": {"reason": "a", "score": 0.25}, "tone": {"reason": "b", "choice": "polite"}}
    assert read_verdicts({"content": json.dumps(answer)}, questions, named=True) == {
        "q": Verdict(0.25, "a"),
        "tone": Verdict(1.0, "b"),
    }
    more = answer | {"other": answer["q"]}
    for bad in ({"q": answer["q"]}, more, answer | {"q": {"score": 1}}, [answer], answer["q"]):
        with pytest.raises(UnreadableVerdict):
            read_verdicts({"content": json.dumps(bad)}, questions, named=True)


def test_the_schema_asks_for_the_reason_first_and_for_nothing_else() -> None:
    told = schema([QUESTION], named=False)
    assert list(told["properties"]) == told["required"] == ["reason", "score"]
    assert told["additionalProperties"] is False
    many = schema([QUESTION, Question("tone", "?", choices=("rude", "polite"))], named=True)
    assert list(many["properties"]) == many["required"] == ["q", "tone"]
    assert many["properties"]["tone"]["properties"]["choice"]["enum"] == ["rude", "polite"]
    assert list(many["properties"]["tone"]["properties"]) == ["reason", "choice"]
