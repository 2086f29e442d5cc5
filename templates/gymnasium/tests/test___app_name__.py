"""Tests of __app_title__: played and scored, and over HTTP."""

import httpx
from __app_name__ import app

from taskapp_kit.testing import Rollout, play

SEEDS = range(30)


def mean_reward(policy: str) -> float:
    return sum(play(app, seed=seed, policy=policy).reward for seed in SEEDS) / len(SEEDS)


def always(action: str, **config: bool) -> Rollout:
    return play(app, seed=0, action={"step": {"action": action}}, config=config)


def test_a_key_is_required(taskapp_served) -> None:
    assert httpx.get(f"{taskapp_served.url}/task_info", headers={"X-API-Key": "another"}).status_code == 401


def test_the_same_seed_is_the_same_episode() -> None:
    assert play(app, seed=3).digest == play(app, seed=3).digest
    assert len({play(app, seed=seed).digest for seed in range(5)}) > 1


def test_good_play_pays_and_chance_does_not() -> None:
    assert mean_reward("random") <= 0.1
    assert mean_reward("gold") >= 0.5


def test_the_observation_is_words() -> None:
    first = always("down", is_slippery=False).trajectory.steps[0]
    assert str(first.observation).startswith("You are at row 1, column 0 of this lake, on ice.")


def test_gymnasiums_time_limit_truncates() -> None:
    trajectory = always("up", is_slippery=False).trajectory
    assert (trajectory.status, trajectory.length) == ("truncated", 100)
    assert trajectory.steps[-1].info["truncated_by"] == "time limit of 100 steps"


def test_an_action_that_does_not_exist_goes_back_to_the_policy() -> None:
    trajectory = always("jump").trajectory
    assert trajectory.status == "truncated"
    assert trajectory.metrics["invalid_actions"] == trajectory.length
