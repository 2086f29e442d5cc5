"""Rows of data: each once in a pass, in an order of the seed; success rates over held-out rows."""

from __future__ import annotations

from typing import Any

import pytest

from taskapp_kit.errors import BadArgument, ServiceError
from taskapp_kit.train.workflow import DataLoader, Response, evaluate

ROWS = [(f"easy {number}", number, 0) for number in range(4)] + [(f"hard {number}", number, 1) for number in range(3)]


def test_each_row_comes_once_before_any_comes_again() -> None:
    loader = DataLoader(ROWS, seed=3)
    drawn = [loader.sample() for _ in range(14)]
    assert sorted(drawn[:7]) == sorted(drawn[7:]) == sorted((prompt, target) for prompt, target, _ in ROWS)
    assert [DataLoader(ROWS, seed=3).sample() for _ in range(2)] == [drawn[0]] * 2


def test_a_difficulty_has_its_rows_only() -> None:
    loader = DataLoader(ROWS)
    assert {loader.sample(difficulty=1)[0] for _ in range(6)} == {"hard 0", "hard 1", "hard 2"}
    with pytest.raises(BadArgument, match="difficulty 7. Expected one of"):
        loader.sample(difficulty=7)


def test_prompts_alone_come_alone() -> None:
    messages = [{"role": "user", "content": "b"}]
    loader = DataLoader(["a", messages])
    assert sorted(map(repr, (loader.sample(), loader.sample()))) == sorted([repr("a"), repr(messages)])


@pytest.mark.parametrize("rows", [[], [("a",)], [(1, 2)]])
def test_wrong_rows_are_refused_before_a_process_starts(rows: list[Any]) -> None:
    with pytest.raises(BadArgument, match="Expected"):
        DataLoader.as_service(rows)


class Fixed:
    """A service's endpoint that answers each call with a function's value."""

    def __init__(self, function: Any) -> None:
        self._function = function

    async def route(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args)


class FixedPolicy:
    generate = Fixed(lambda prompt: Response(" 1 ", [1], [2], [0.0], 0))


class Rewards:
    def __init__(self, *values: float | None) -> None:
        left = list(values)
        self.evaluate_response = Fixed(lambda prompt, text, target: left.pop())


@pytest.mark.anyio
async def test_the_success_rate_is_over_rows_with_a_reward() -> None:
    policy: Any = FixedPolicy()
    assert await evaluate(policy, rows=ROWS) == 2 / 7
    assert await evaluate(policy, 1, rows=ROWS) == 1 / 3
    rewards: Any = Rewards(1.0, None, 0.5)
    assert await evaluate(policy, 1, rows=ROWS, reward=rewards) == 0.5
    undefined: Any = Rewards(None, None, None)
    with pytest.raises(ServiceError, match="None of 3 replies"):
        await evaluate(policy, 1, rows=ROWS, reward=undefined)
