"""Tests of __app_title__: the class alone, then played and scored, then over HTTP."""

import httpx
import pytest
from __app_name__ import Safe, app

from taskapp_kit import InvalidAction, RequestError
from taskapp_kit.testing import play

SEEDS = range(20)


def mean_reward(policy: str) -> float:
    return sum(play(app, seed=seed, policy=policy).reward for seed in SEEDS) / len(SEEDS)


# The decorators do not change the class, so its rules can be tested directly.


def test_the_secret_opens_the_safe() -> None:
    safe = Safe()
    safe.reset(seed=7)
    safe.dials = list(safe.secret)
    step = safe.pull()
    assert (step.reward, step.terminated) == (1.0, True)


def test_the_same_pull_twice_and_turning_too_far_are_refused() -> None:
    safe = Safe(positions=3)
    safe.reset(seed=1)
    safe.pull()
    with pytest.raises(InvalidAction, match="already"):
        safe.pull()
    with pytest.raises(InvalidAction, match="cannot turn"):
        safe.turn(dial=1, clicks=3)
    assert safe.pulls_left == 7  # a rejected action does not use a pull


def test_it_ends_when_the_pulls_are_used_up() -> None:
    safe = Safe(pulls=1)
    safe.reset(seed=2)
    safe.dials = [(position + 1) % safe.positions for position in safe.secret]
    assert safe.pull().terminated


# Played and scored.


def test_the_same_seed_is_the_same_episode() -> None:
    assert play(app, seed=3).digest == play(app, seed=3).digest
    assert play(app, seed=3).digest != play(app, seed=4).digest


def test_good_play_pays_and_idling_does_not() -> None:
    assert mean_reward("gold") > 0.8
    assert mean_reward("random") < 0.35
    assert mean_reward("noop") == 0.0


def test_limits_truncate_and_rules_terminate() -> None:
    idle = play(app, seed=5, policy="noop").trajectory
    assert (idle.status, idle.stop_reason, idle.length) == ("truncated", "max_steps", 60)
    assert play(app, seed=5, policy="gold").trajectory.status == "terminated"


def test_config_is_the_constructor_and_is_checked() -> None:
    assert "0 to 1" in play(app, seed=5, policy="gold", config={"positions": 2}).trajectory.initial
    for config in ({"positions": 1}, {"position": 5}):
        with pytest.raises(RequestError):
            play(app, seed=5, policy="gold", config=config)


def test_the_numbers_add_up() -> None:
    scores = play(app, seed=8, policy="gold").scorecard
    assert scores.outcome_score > 0.75
    assert scores.reward == pytest.approx(scores.outcome_score + 0.1 * scores.events_score)
    assert scores.metrics["pulls"] >= 1


# Over HTTP, as a trainer calls it.


def test_a_key_is_required(taskapp_served) -> None:
    address = f"{taskapp_served.url}/task_info"
    assert httpx.get(address, headers={"X-API-Key": "another"}).status_code == 401
    assert httpx.get(address, headers={"X-API-Key": taskapp_served.key}).status_code == 200
