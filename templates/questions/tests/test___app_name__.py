"""Tests of __app_title__: the reward of an answer, and the responses over HTTP."""

import httpx
import pytest
from __app_name__ import app

from taskapp_kit.testing import play

TRAIN, TEST = range(12), range(6)


@pytest.mark.parametrize(("split", "seeds"), [("train", TRAIN), ("test", TEST)])
def test_every_row_can_be_answered(split: str, seeds: range) -> None:
    assert [play(app, seed=seed, policy="gold", split=split).reward for seed in seeds] == [1.0] * len(seeds)


def test_the_same_words_to_every_question_earn_little() -> None:
    rewards = [play(app, seed=seed, action="Answer: 12").reward for seed in TRAIN]
    assert sum(rewards) / len(rewards) <= 0.25


def test_listing_answers_earns_nothing() -> None:
    hedged = "Answer: 85, 8, 1000, 12, 20, 150, 15, 10, 28, Saturday, 24"
    assert all(play(app, seed=seed, action=hedged).reward == 0.0 for seed in TRAIN)


def test_the_last_line_counts() -> None:
    right = play(app, seed=0, policy="gold").trajectory.answer_text
    assert play(app, seed=0, action=f"Answer: ?\nNo, wait.\n**{right}**").reward == 1.0
    assert play(app, seed=0, action=f"{right}\nNo, I am not sure.").reward == 0.0
    assert play(app, seed=0, action=right.removeprefix("Answer:")).reward == 0.0


def test_the_same_seed_is_the_same_episode() -> None:
    assert play(app, seed=3, policy="gold").digest == play(app, seed=3, policy="gold").digest
    assert play(app, seed=3, policy="gold").digest != play(app, seed=4, policy="gold").digest


def test_a_caller_needs_the_key_and_is_never_shown_the_right_answer(taskapp_served) -> None:
    # row 10 of train, because its question does not contain its answer, Saturday
    body = {
        "run_id": "test",
        "mode": "eval",
        "env": {"seed": 10},
        "policy": {"config": {"policy": "constant", "action": "Answer: ?"}},
        "ops": [],
    }
    with httpx.Client(base_url=taskapp_served.url, headers={"X-API-Key": taskapp_served.key}) as client:
        shown = client.get("/task_info", params={"seed": 10}).text + client.post("/rollout", json=body).text
        assert client.get("/task_info", headers={"X-API-Key": "another"}).status_code == 401
    assert "weekday" in shown
    assert "saturday" not in shown.lower()
