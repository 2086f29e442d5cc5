"""__app_title__: the class by itself, then over HTTP, as a trainer calls it."""

from collections.abc import Iterator
from typing import Any

import pytest
from __app_name__ import Safe, app
from fastapi.testclient import TestClient

from taskapp_kit import InvalidAction

KEY = "a-key-for-these-tests"
SEEDS = range(20)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setenv("ENVIRONMENT_API_KEY", KEY)
    monkeypatch.setenv("TASKAPP_STORE", "none")
    with TestClient(app.asgi(), headers={"X-API-Key": KEY}) as client:
        yield client


def ask(client: TestClient, seed: int, policy: str, **config: Any) -> Any:
    return client.post(
        "/rollout",
        json={
            "run_id": "test",
            "mode": "eval",
            "env": {"seed": seed, "config": config},
            "policy": {"policy_name": policy, "config": {}},
            "ops": [],
        },
    )


def rollout(client: TestClient, seed: int, policy: str, **config: Any) -> dict[str, Any]:
    answer = ask(client, seed, policy, **config)
    assert answer.status_code == 200, answer.text
    return answer.json()


def mean_reward(client: TestClient, policy: str) -> float:
    return sum(rollout(client, seed, policy)["reward"] for seed in SEEDS) / len(SEEDS)


# The decorators change nothing: the class works without a server, so its rules are tested directly.


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
    assert safe.pulls_left == 7  # a refusal costs no pull


def test_it_ends_when_the_pulls_are_used_up() -> None:
    safe = Safe(pulls=1)
    safe.reset(seed=2)
    safe.dials = [(position + 1) % safe.positions for position in safe.secret]
    assert safe.pull().terminated


# Over HTTP.


def test_a_key_is_required(client: TestClient) -> None:
    assert ask(client, 0, "gold").status_code == 200
    client.headers["X-API-Key"] = "another"
    assert ask(client, 0, "gold").status_code == 401


def test_the_same_seed_is_the_same_episode(client: TestClient) -> None:
    assert rollout(client, 3, "random")["digest"] == rollout(client, 3, "random")["digest"]
    assert rollout(client, 3, "random")["digest"] != rollout(client, 4, "random")["digest"]


def test_good_play_pays_and_idling_does_not(client: TestClient) -> None:
    gold, chance = mean_reward(client, "gold"), mean_reward(client, "random")
    assert gold > 0.8
    assert chance < 0.35
    assert mean_reward(client, "noop") == 0.0


def test_limits_truncate_and_rules_terminate(client: TestClient) -> None:
    idle = rollout(client, 5, "noop")
    assert (idle["status"], idle["stop_reason"], idle["metrics"]["num_steps"]) == ("truncated", "max_steps", 60)
    assert rollout(client, 5, "gold")["status"] == "terminated"


def test_config_is_the_constructor_and_is_checked(client: TestClient) -> None:
    assert "0 to 1" in str(rollout(client, 5, "gold", positions=2)["trajectories"][0]["trace"]["initial_observation"])
    assert ask(client, 5, "gold", positions=1).status_code == 422
    assert ask(client, 5, "gold", position=5).status_code == 422


def test_the_numbers_add_up(client: TestClient) -> None:
    answer = rollout(client, 8, "gold")
    scores = answer["metrics"]
    assert scores["outcome_score"] > 0.75
    assert answer["reward"] == pytest.approx(scores["outcome_score"] + 0.1 * scores["events_score"])
    assert scores["details"]["pulls"] >= 1
