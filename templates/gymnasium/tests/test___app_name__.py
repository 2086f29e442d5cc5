"""__app_title__ over HTTP, as a trainer calls it."""

from collections.abc import Iterator
from typing import Any

import pytest
from __app_name__ import app
from fastapi.testclient import TestClient

KEY = "a-key-for-these-tests"
SEEDS = range(30)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setenv("ENVIRONMENT_API_KEY", KEY)
    monkeypatch.setenv("TASKAPP_STORE", "none")
    with TestClient(app.asgi(), headers={"X-API-Key": KEY}) as client:
        yield client


def ask(client: TestClient, seed: int, policy: str, action: Any = None, **config: Any) -> Any:
    return client.post(
        "/rollout",
        json={
            "run_id": "test",
            "mode": "eval",
            "env": {"seed": seed, "config": config},
            "policy": {
                "policy_name": policy,
                "config": {} if action is None else {"action": {"step": {"action": action}}},
            },
            "ops": [],
        },
    )


def rollout(client: TestClient, seed: int, policy: str, action: Any = None, **config: Any) -> dict[str, Any]:
    answer = ask(client, seed, policy, action, **config)
    assert answer.status_code == 200, answer.text
    return answer.json()


def mean_reward(client: TestClient, policy: str) -> float:
    return sum(rollout(client, seed, policy)["reward"] for seed in SEEDS) / len(SEEDS)


def test_a_key_is_required(client: TestClient) -> None:
    assert client.get("/task_info", headers={"X-API-Key": "another"}).status_code == 401


def test_the_same_seed_is_the_same_episode(client: TestClient) -> None:
    assert rollout(client, 3, "random")["digest"] == rollout(client, 3, "random")["digest"]
    assert len({rollout(client, seed, "random")["digest"] for seed in range(5)}) > 1


def test_good_play_pays_and_chance_does_not(client: TestClient) -> None:
    assert mean_reward(client, "random") <= 0.1
    assert mean_reward(client, "gold") >= 0.5


def test_the_observation_is_words(client: TestClient) -> None:
    steps = rollout(client, 0, "constant", "down", is_slippery=False)["trajectories"][0]["steps"]
    assert steps[0]["obs"]["text"].startswith("You are at row 1, column 0 of this lake, on ice.")


def test_gymnasiums_time_limit_truncates(client: TestClient) -> None:
    answer = rollout(client, 0, "constant", "up", is_slippery=False)
    last = answer["trajectories"][0]["steps"][-1]
    assert (answer["status"], answer["metrics"]["num_steps"]) == ("truncated", 100)
    assert last["info"]["truncated_by"] == "time limit of 100 steps"


def test_an_action_that_is_none_goes_back_to_the_policy(client: TestClient) -> None:
    answer = rollout(client, 0, "constant", "jump")
    assert (answer["stop_reason"], answer["metrics"]["details"]["invalid_actions"]) == ("max_steps", 120)
