"""Reward models: one number, from whatever form it comes in; anything else fails."""

from __future__ import annotations

import math
from typing import Any

import pytest

from taskapp_kit.rollout.score.judge_calls import read_reward, reward_request
from taskapp_kit.rollout.score.scoring import ScoringFailed
from taskapp_kit.rollout.score.verdict import UnreadableVerdict
from taskapp_kit.wire.chat.conversation import ChatReply
from tests.rollout.score.bench import Models, card_of, judged_app, verdict

FORMS: list[Any] = [
    {"score": 0.5},
    {"reward": 0.5, "model": "rm"},
    {"id": "1", "object": "list", "data": [{"index": 0, "object": "score", "score": 0.5}], "usage": {}},
    {"data": [{"index": 0, "object": "pooling", "data": [[0.5]]}]},
    {"data": [{"index": 0, "object": "pooling", "data": [0.5]}]},
    {"data": [{"index": 0, "label": "LABEL_0", "probs": [0.5], "num_classes": 1}]},
    [{"score": 0.5}],
    0.5,
]
GARBAGE: list[Any] = [
    None,
    "0.5",
    True,
    {},
    [],
    {"score": "high"},
    {"score": None},
    {"score": True},
    {"score": math.nan},
    {"score": math.inf},
    {"score": 2},
    {"score": -0.1},
    {"score": 10**400},
    {"score": [0.1, 0.2]},
    {"score": 0.1, "reward": 0.2},
    {"data": [{"score": 0.1}, {"score": 0.2}]},
    {"data": [{"label": "a", "probs": [0.2, 0.8]}]},
    {"error": "too long"},
]


def answered(answer: Any) -> ChatReply:
    return ChatReply({"role": "assistant", "content": "", "answer": answer}, model="rm", cost=0.002)


@pytest.mark.parametrize("form", FORMS)
def test_the_number_in_each_form(form: Any) -> None:
    assert read_reward(form, (0.0, 1.0)) == 0.5
    models = Models([answered(form)])
    card = card_of(judged_app(kind="reward_model"), "Clouds.", models)
    assert (card.reward, card.criteria[0].reason, card.criteria[0].cost) == (0.5, None, 0.002)
    assert models.asked == [("judge", {"kind": "reward_model", "input": "Clouds."})]


@pytest.mark.parametrize("answer", GARBAGE)
def test_anything_else_fails_at_once(answer: Any) -> None:
    with pytest.raises(UnreadableVerdict):
        read_reward(answer, (0.0, 1.0))
    models = Models([answered(answer)])
    with pytest.raises(ScoringFailed, match=r"'judge' .*\bonce\b") as caught:
        card_of(judged_app(kind="reward_model"), "Clouds.", models)
    assert (len(models.asked), caught.value.failure.code) == (1, "judge_unreadable")


def test_a_chat_models_answer_is_no_reward() -> None:
    with pytest.raises(ScoringFailed, match="chat"):
        card_of(judged_app(kind="reward_model"), "Clouds.", Models([verdict(0.5)]))


def test_its_scale_may_be_wide() -> None:
    card = card_of(judged_app(kind="reward_model", scale=(-20, 20)), "x", Models([answered({"score": -7.25})]))
    assert (card.criteria[0].score, card.reward) == (-7.25, 12.75 / 40)


def test_what_is_sent() -> None:
    messages = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Clouds."}]
    assert reward_request("x") == {"kind": "reward_model", "input": "x"}
    assert reward_request("half \ud800 a pair")["input"] == "half ? a pair"
    assert reward_request(messages) == {"kind": "reward_model", "messages": messages}
    assert reward_request({"text_1": "a", "text_2": "b"}) == {"kind": "reward_model", "text_1": "a", "text_2": "b"}
    for bad in (3, ["a"], [], {"model": "x"}, {"kind": "x"}):
        with pytest.raises(TypeError):
            reward_request(bad)


def test_private_fields_are_replaced_in_what_is_kept_and_long_texts_are_cut() -> None:
    app = judged_app(lambda answer_text, task: [{"role": "user", "content": task.answer}, {"role": "assistant", "content": answer_text}],
                     kind="reward_model", samples=2)  # fmt: skip
    models = Models([answered({"score": 0.5}), answered({"score": 1})])
    card = card_of(app, "z" * 1_000_000, models)
    assert (card.reward, card.criteria[0].spread) == (0.75, 0.5)
    assert models.asked[0][1]["messages"][0]["content"] == "clouds"
    assert len(models.asked[0][1]["messages"][1]["content"]) < 61_000
    (kept,) = card.judging.prompts.values()
    assert kept["messages"][0]["content"] == "[private: answer]"
    assert card.judging.calls[1].verdict == {"score": 1.0}
