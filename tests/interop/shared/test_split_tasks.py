"""The tasks of a split, as ORS and OpenEnv list them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from taskapp_kit import Step, TaskApp, action
from taskapp_kit.errors import RequestError
from taskapp_kit.interop.split_tasks import MOST_TASKS, splits_of, task_answer
from taskapp_kit.net.error_response import RequestRefused
from tests.serve.running_server import app as served_app

app = TaskApp("ranges", version="1.0.0")


@app.environment("walk", splits={"train": range(10, 30, 2), "huge": range(100, 2**63), "test": range(40, 45)})
class Walk:
    """Walks."""

    def reset(self, seed: int) -> str:
        return "here"

    @action
    def go(self) -> Step:
        """Go."""
        return Step("there", reward=1.0, terminated=True)


WALK = app.freeze().environments["walk"]
QUIZ = served_app.freeze().environments["quiz"]


def asked(environment: Any, name: str, **body: Any) -> Any:
    return asyncio.run(task_answer(environment, name, body))


def seeds(answer: Any) -> list[int]:
    return [task["seed"] for task in answer["tasks"]]


def test_splits_have_types_of_ors() -> None:
    assert splits_of(WALK) == [
        {"name": "train", "type": "train"},
        {"name": "huge", "type": "validation"},
        {"name": "test", "type": "test"},
    ]


def test_tasks_are_the_seeds_of_the_split_in_order() -> None:
    every = asked(WALK, "tasks", split="train")
    assert every["env_name"] == "walk" and seeds(every) == list(range(10, 30, 2))
    assert asked(WALK, "num_tasks", split="train") == {"num_tasks": 10}
    assert asked(WALK, "task", split="train", index=3) == {"task": {"split": "train", "seed": 16}, "env_name": "walk"}
    for start, stop in [(None, None), (2, 4), (-3, None), (None, -8), (5, 2), (0, 99)]:
        found = asked(WALK, "task_range", split="train", start=start, stop=stop)
        assert seeds(found) == seeds(every)[start:stop] and found["env_name"] == "walk"


def test_a_huge_split_is_counted_and_listed_in_parts() -> None:
    assert asked(WALK, "num_tasks", split="huge") == {"num_tasks": 2**63 - 100}
    assert seeds(asked(WALK, "task_range", split="huge", start=-2)) == [2**63 - 2, 2**63 - 1]
    assert asked(WALK, "task", split="huge", index=2**62)["task"]["seed"] == 2**62 + 100
    for name in ("tasks", "task_range"):
        with pytest.raises(RequestRefused, match=str(MOST_TASKS)) as refused:
            asked(WALK, name, split="huge")
        assert refused.value.code == "too_many_tasks"


def test_rows_contain_only_public_fields() -> None:
    found = asked(QUIZ, "tasks", split="train")
    assert [task["row"] for task in found["tasks"]] == [
        {"question": "Two and two?"},
        {"question": "Three and three?"},
    ]
    assert "sentinel" not in json.dumps(found)
    assert asked(QUIZ, "task", split="test", index=0)["task"] == {
        "split": "test", "seed": 0, "row": {"question": "One and one?"},
    }  # fmt: skip


@pytest.mark.parametrize(
    "name,body,code",
    [
        ("tasks", {"split": "no"}, "unknown_split"),
        ("num_tasks", {"split": "no"}, "unknown_split"),
        ("task", {"split": "train", "index": 10}, "index_out_of_range"),
        ("task", {"split": "train", "index": -1}, "index_out_of_range"),
        ("task_range", {"split": "", "start": 0}, "unknown_split"),
    ],
)
def test_unknown_splits_and_indexes_are_rejected(name: str, body: dict[str, Any], code: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        asked(WALK, name, **body)
    assert refused.value.code == code


@pytest.mark.parametrize(
    "name,body",
    [
        ("tasks", {}),
        ("task", {"split": "train"}),
        ("task", {"split": "train", "index": "1"}),
        ("task", {"split": "train", "index": True}),
        ("task_range", {"split": "train", "stop": 1.5}),
        ("num_tasks", {"split": 1}),
        ("num_tasks", {"split": "train", "x": 1}),
    ],
)
def test_invalid_body_is_a_request_error(name: str, body: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        asked(WALK, name, **body)
