"""Laws of advantages: relative to the group's survivors, exactly 0 without spread, untouched by failures."""

from __future__ import annotations

import math
import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.train.advantages import EPSILON, Scale, group_advantages, returns_to_go, turn_advantages

REWARD = st.floats(-10, 10).map(lambda value: round(value, 3))
GROUP = st.lists(st.one_of(REWARD, st.none()), min_size=1, max_size=6)
GROUPS = st.dictionaries(st.sampled_from("abc"), GROUP, min_size=1)
SCALES = st.sampled_from(("none", "group", "batch"))


def close(one: Any, other: Any) -> bool:
    """Equal up to rounding, None only where the other is."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(close, one, other))
    return (one is None and other is None) or math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)


@given(returns=GROUPS, scale=SCALES)
def test_the_advantages_of_a_group_sum_to_0(returns: dict[str, list[float | None]], scale: Scale) -> None:
    for name, group in group_advantages(returns, scale).items():
        assert [each is None for each in group] == [each is None for each in returns[name]]
        survivors = [each for each in group if each is not None]
        assert abs(math.fsum(survivors)) < 1e-9 * max([1.0, *map(abs, survivors)])


@given(returns=GROUPS, scale=SCALES, failures=st.integers(0, 3))
def test_a_failure_changes_nothing_for_the_others(
    returns: dict[str, list[float | None]], scale: Scale, failures: int
) -> None:
    more = {name: [*group, *[None] * failures] for name, group in returns.items()}
    assert group_advantages(more, scale) == {
        name: [*group, *[None] * failures] for name, group in group_advantages(returns, scale).items()
    }


@given(reward=st.floats(-1e6, 1e6), count=st.integers(1, 9), scale=SCALES)
def test_equal_rewards_have_exactly_no_advantage(reward: float, count: int, scale: Scale) -> None:
    """0.1 + 0.1 + 0.1 divided by 3 is not 0.1: a rounding error is not to become a gradient."""
    assert group_advantages({"a": [reward] * count, "b": [0.0, 1.0]}, scale)["a"] == [0.0] * count


@given(returns=GROUPS, scale=SCALES, shift=st.integers(-5, 5))
def test_a_reward_for_all_of_them_changes_nothing(
    returns: dict[str, list[float | None]], scale: Scale, shift: int
) -> None:
    shifted = {name: [None if each is None else each + shift for each in group] for name, group in returns.items()}
    assert close(group_advantages(shifted, scale), group_advantages(returns, scale))


@given(group=GROUP, others=GROUP, scale=st.sampled_from(("none", "group")))
def test_another_group_changes_nothing_unless_the_batch_scales(
    group: list[float | None], others: list[float | None], scale: Scale
) -> None:
    assert group_advantages({"a": group, "b": others}, scale)["a"] == group_advantages({"a": group}, scale)["a"]


@given(group=GROUP, seed=st.integers())
def test_the_order_of_a_group_says_nothing(group: list[float | None], seed: int) -> None:
    order = list(range(len(group)))
    random.Random(seed).shuffle(order)
    advantages = group_advantages({"a": group})["a"]
    assert close(group_advantages({"a": [group[each] for each in order]})["a"], [advantages[each] for each in order])


def test_scales() -> None:
    returns = {"a": [0.0, 1.0, None], "b": [4.0, 4.0]}
    assert group_advantages(returns, "none")["a"] == [-0.5, 0.5, None]
    assert close(group_advantages(returns, "group")["a"][1], 0.5 / (math.sqrt(0.5) + EPSILON))
    assert close(group_advantages(returns, "batch")["a"][1], 0.5 / (statistics.stdev([0, 1, 4, 4]) + EPSILON))


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_return_is_finite(wrong: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        group_advantages({"a": [wrong, 1.0]})


@given(rewards=st.lists(REWARD, max_size=6), discount=st.floats(0, 1))
def test_a_return_is_the_reward_and_the_discounted_return_after_it(rewards: list[float], discount: float) -> None:
    returns = returns_to_go(rewards, discount)
    assert len(returns) == len(rewards)
    for reward, now, later in zip(rewards, returns, [*returns[1:], 0.0], strict=False):
        assert close(now, reward + discount * later)


@given(
    rollouts=st.lists(st.one_of(st.none(), st.lists(REWARD, max_size=5)), min_size=1, max_size=5),
    scale=SCALES,
)
def test_turns_are_compared_with_turns_of_their_index(rollouts: list[list[float] | None], scale: Scale) -> None:
    advantages = turn_advantages({"a": rollouts}, scale)["a"]
    assert [None if each is None else len(each) for each in advantages] == [
        None if each is None else len(each) for each in rollouts
    ]
    for index in range(5):
        column = [each[index] for each in advantages if each is not None and len(each) > index]
        assert abs(math.fsum(column)) < 1e-9 * max([1.0, *map(abs, column)])
        if len(column) == 1:
            assert column == [0.0]


@given(group=GROUP, scale=SCALES)
def test_episodes_of_one_turn_are_the_same_either_way(group: list[float | None], scale: Scale) -> None:
    by_turn = turn_advantages({"a": [None if each is None else [each] for each in group]}, scale)["a"]
    assert [None if each is None else each[0] for each in by_turn] == group_advantages({"a": group}, scale)["a"]
