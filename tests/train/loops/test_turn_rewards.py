"""The rewards of turns, from answers of task apps of this kit and of others."""

from __future__ import annotations

from typing import Any

import pytest

from taskapp_kit.train.loops.turn_rewards import NoTurnRewards, turn_rewards
from taskapp_kit.train.turns import RecordedTurn


def turn(*, delivered: bool = True, auxiliary: bool = False) -> RecordedTurn:
    return RecordedTurn((1,), (2,), (-0.5,), 0, "stop", 0.1, delivered, None, auxiliary)


def answered(**more: Any) -> dict[str, Any]:
    return {"kind": "answered", **more}


def stepped(reward: float | None) -> dict[str, Any]:
    return {"kind": "stepped", "step": {"reward": reward}}


def of_events(*events: Any) -> dict[str, Any]:
    return {"trajectories": [{"steps": [{"reward": 99.0}], "trace": {"event_history": list(events)}}]}


def of_steps(*rewards: Any) -> dict[str, Any]:
    return {"trajectories": [{"steps": [{"reward": reward} for reward in rewards]}]}


def test_a_turn_has_the_rewards_of_the_steps_that_followed_it() -> None:
    events = [
        answered(), stepped(1.0), stepped(2.0), answered(), answered(), stepped(None),
        answered(scripted=True), stepped(4.0), answered(), stepped(-3.0),
    ]  # fmt: skip
    assert turn_rewards(of_events(*events), [turn()] * 4, 4.0, None) == (3.0, 0.0, 4.0, -3.0)


def test_of_calls_before_one_answer_the_last_has_the_reward() -> None:
    events = [answered(answer={"details": {"earlier_calls": [{}, {}]}}), stepped(1.0)]
    assert turn_rewards(of_events(*events), [turn()] * 3, 1.0, None) == (0.0, 0.0, 1.0)


def test_turns_that_the_policy_did_not_get_or_make_have_none() -> None:
    turns = [turn(), turn(delivered=False), turn(auxiliary=True), turn()]
    assert turn_rewards(of_steps(1.0, 2.0), turns, 3.0, None) == (1.0, 0.0, 0.0, 2.0)


def test_what_the_episode_got_beside_its_steps_is_the_last_turns() -> None:
    assert turn_rewards(of_steps(1.0, 2.0), [turn()] * 2, 4.0, 0.5) == (0.5, 3.5)
    assert turn_rewards(of_steps(1.0, 2.0), [turn()] * 2, 0.25, 0.0) == (0.0, 0.25)


@pytest.mark.parametrize(
    ("answer", "reward", "words"),
    [
        ({}, 0.0, "no trajectory"),
        ({"trajectories": ["x"]}, 0.0, "no trajectory"),
        (of_steps(), 0.0, "rewards for 0 model calls"),
        (of_steps(1.0), 1.0, "rewards for 1 model calls"),
        (of_steps(1.0, "2"), 3.0, "not a number"),
        (of_steps(1.0, True), 2.0, "not a number"),
        (of_steps(1.0, float("nan")), 1.0, "not a number"),
        (of_events(answered(), "x"), 0.0, "not a JSON object"),
        (of_steps(None, None), 1.0, "add up to 0, but the episode's reward is 1"),
    ],
)
def test_an_answer_that_does_not_say_it_is_refused(answer: dict[str, Any], reward: float, words: str) -> None:
    with pytest.raises(NoTurnRewards, match=words):
        turn_rewards(answer, [turn()] * 2, reward, None)
