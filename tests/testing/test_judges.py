"""The mock judge: the same text gets the same verdict, choices are known, and a word that is none of them is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from taskapp_kit.errors import ConfigError
from taskapp_kit.rollout.score.judge_input import sections
from taskapp_kit.rollout.score.judge_prompt import JudgePrompt
from taskapp_kit.rollout.score.verdict import Question, read_verdicts
from taskapp_kit.testing import ChatRequest, MockModel, by_name, judge
from taskapp_kit.testing.mock_model.chat_request import Refused
from taskapp_kit.testing.mock_model.judges import verdict, without_nonces

TONE = Question("tone", "Is it polite?", choices=("rude", "plain", "polite"))
LENGTH = Question("length", "Is it short?", (0.0, 10.0))
NONCES = ("0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210")


def asked(*questions: Question, nonce: str = NONCES[0], form: str = "json_schema", said: str = "Hello.") -> ChatRequest:
    asking = JudgePrompt(questions, tuple(sections(said)), named=len(questions) > 1, form=form)
    body = asking.body(nonce)
    return ChatRequest({"model": "m", **body}, digest=json.dumps(body["messages"]))


def verdicts(answer: Any, *questions: Question) -> list[float]:
    read = read_verdicts({"content": answer.content}, questions, named=len(questions) > 1)
    return [read[question.name].score for question in questions]


@pytest.mark.parametrize("form", ["json_schema", "text"])
@pytest.mark.parametrize(("score", "share"), [(0.0, 0.0), (0.5, 0.5), (0.7, 0.5), (0.8, 1.0), ("polite", 1.0)])
def test_choices_are_known(form: str, score: float | str, share: float) -> None:
    assert verdicts(judge(score)(asked(TONE, form=form)), TONE) == [share]


@pytest.mark.parametrize("form", ["json_schema", "text"])
def test_several_questions_are_answered_by_name(form: str) -> None:
    assert verdicts(judge(0.5)(asked(TONE, LENGTH, form=form)), TONE, LENGTH) == [0.5, 0.5]


@pytest.mark.parametrize("form", ["json_schema", "text"])
@pytest.mark.parametrize(("score", "question"), [("kind", TONE), ("polite", LENGTH), (7.0, TONE)])
def test_what_is_none_of_the_choices_is_refused(form: str, score: float | str, question: Question) -> None:
    with pytest.raises(Refused):
        judge(score)(asked(question, form=form))


def test_the_nonce_changes_no_verdict() -> None:
    drawn = judge(lambda request: request.rng().choice(TONE.choices))
    texts = [f"Answer number {number}." for number in range(20)]
    first, second = ([verdicts(drawn(asked(TONE, nonce=nonce, said=said)), TONE) for said in texts] for nonce in NONCES)
    assert first == second
    assert len({score for (score,) in first}) == 3  # the text does


def test_other_members_of_a_schema_are_drawn_without_the_nonce() -> None:
    schema = {"type": "object", "properties": {"mood": {"enum": list("abcdefgh")}}, "required": ["mood"]}
    form = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": schema}}
    answers = set()
    for nonce in NONCES:
        text = f"<text-{nonce}>Hello.</text-{nonce}>"
        request = ChatRequest({"messages": [{"role": "user", "content": text}], "response_format": form}, digest=text)
        answers.add(verdict(without_nonces(request), 0.5, "So.").content)
    assert len(answers) == 1


def test_a_score_goes_with_a_judge_alone() -> None:
    assert verdicts(by_name("judge", score="polite")(asked(TONE)), TONE) == [1.0]  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        by_name("echo", score=1.0)
    with pytest.raises(ConfigError):
        MockModel(["Hello."], score=1.0)
