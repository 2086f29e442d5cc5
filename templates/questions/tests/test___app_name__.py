"""__app_title__ over HTTP, as a trainer calls it."""

from collections.abc import Iterator
from typing import Any

import pytest
from __app_name__ import app, final_answer
from fastapi.testclient import TestClient

KEY = "a-key-for-these-tests"
TRAIN, TEST = range(12), range(6)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setenv("ENVIRONMENT_API_KEY", KEY)
    monkeypatch.setenv("TASKAPP_STORE", "none")
    monkeypatch.setenv("TASKAPP_GOLD", "on")  # it reads the rows, so a public server would not offer it
    with TestClient(app.asgi(), headers={"X-API-Key": KEY}) as client:
        yield client


def rollout(client: TestClient, seed: int, policy: str, split: str = "train", **policy_config: Any) -> dict[str, Any]:
    answer = client.post(
        "/rollout",
        json={
            "run_id": "test",
            "mode": "eval",
            "env": {"seed": seed, "config": {"split": split}},
            "policy": {"policy_name": policy, "config": policy_config},
            "ops": [],
        },
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_key_is_required(client: TestClient) -> None:
    assert client.get("/task_info", headers={"X-API-Key": "another"}).status_code == 401


@pytest.mark.parametrize(("split", "seeds"), [("train", TRAIN), ("test", TEST)])
def test_every_row_can_be_answered(client: TestClient, split: str, seeds: range) -> None:
    assert [rollout(client, seed, "gold", split)["reward"] for seed in seeds] == [1.0] * len(seeds)


def test_the_same_words_to_every_question_earn_little(client: TestClient) -> None:
    rewards = [rollout(client, seed, "constant", action="Answer: 12")["reward"] for seed in TRAIN]
    assert sum(rewards) / len(rewards) <= 0.25


def test_listing_answers_earns_nothing(client: TestClient) -> None:
    hedged = "Answer: 85, 8, 1000, 12, 20, 150, 15, 10, 28, Saturday, 24"
    assert all(rollout(client, seed, "constant", action=hedged)["reward"] == 0.0 for seed in TRAIN)


def test_the_last_answer_line_counts() -> None:
    assert final_answer("Answer: 3\nNo, wait.\n**Answer: 4.**") == "4"
    assert final_answer("It is 4.") is None


def test_the_same_seed_is_the_same_episode(client: TestClient) -> None:
    assert rollout(client, 3, "gold")["digest"] == rollout(client, 3, "gold")["digest"]
    assert rollout(client, 3, "gold")["digest"] != rollout(client, 4, "gold")["digest"]


def test_the_right_answer_is_never_told(client: TestClient) -> None:
    # row 10 of train: its answer, Saturday, stands nowhere in its question
    told = client.get("/task_info", params={"seed": 10}).text + str(rollout(client, 10, "constant", action="Answer: ?"))
    assert "weekday" in told
    assert "saturday" not in told.lower()
