"""Which evaluation ends a job, which level a curriculum plays next, and which groups are whose."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from taskapp_kit.train.loops.loop_settings import Curriculum, EarlyStopping, Level, divided, turn_order


def ended_at(rule: EarlyStopping, rewards: Sequence[float | None]) -> tuple[int, str] | None:
    """The index of the evaluation that ends the job, and its reason."""
    known: dict[str, object] = {}
    for index, reward in enumerate(rewards):
        known = rule.after(reward, known)
        if "reason" in known:
            return index, str(known["reason"])
    return None


@pytest.mark.parametrize(
    ("rule", "rewards", "expected"),
    [
        (EarlyStopping(), [0.1, 0.1, 1.0, 0.0], None),
        (EarlyStopping(stop_at=0.9), [0.1, 0.8, 0.9, 1.0], (2, "its reward 0.9 reached 0.9")),
        (EarlyStopping(patience=2), [0.5, 0.4, 0.6, 0.6, 0.5], (4, "2 in a row were not better than 0.6")),
        (EarlyStopping(patience=2), [0.5, 0.4, 0.6, 0.5, 0.7, 0.6], None),
        (EarlyStopping(patience=2), [None, 0.5, None, 0.4, None, 0.3], (5, "2 in a row were not better than 0.5")),
        (EarlyStopping(stop_at=0.0, patience=9), [-1.0, 0.0], (1, "its reward 0 reached 0")),
    ],
)
def test_the_evaluation_that_ends_a_job(
    rule: EarlyStopping, rewards: list[float | None], expected: tuple[int, str] | None
) -> None:
    assert ended_at(rule, rewards) == expected


LEVELS = ("easy", "medium", "hard")


def levels(rule: Curriculum, rewards: Sequence[float | None]) -> list[Level | None]:
    """The level of each iteration, and that of the one after the last."""
    known: dict[str, object] = {}
    found = [rule.level(known)]
    for reward in rewards:
        known = rule.after(reward, rule.level(known), known)
        found.append(rule.level(known))
    return found


@pytest.mark.parametrize(
    ("rule", "rewards", "expected"),
    [
        (Curriculum(LEVELS, up=0.8), [0.9, 0.1, 0.8, 1.0], ["easy", "medium", "medium", "hard", "hard"]),
        (Curriculum(LEVELS, up=0.8, down=0.2), [0.1, 0.8, 0.2, 0.9], ["easy", "easy", "medium", "easy", "medium"]),
        (Curriculum(LEVELS, up=0.5, window=2), [1.0, 0.1, 0.2, 0.9], ["easy", "easy", "medium", "medium", "hard"]),
        (Curriculum(LEVELS, up=0.8), [None, 0.8, None], ["easy", "easy", "medium", "medium"]),
        (Curriculum((1, 2), up=0.0), [0.0], [1, 2]),
        (Curriculum(), [1.0], [None, None]),
    ],
)
def test_the_level_follows_the_reward(
    rule: Curriculum, rewards: list[float | None], expected: list[Level | None]
) -> None:
    assert levels(rule, rewards) == expected


def test_an_iteration_of_another_level_changes_nothing() -> None:
    rule = Curriculum(LEVELS, up=0.8, window=2)
    known = rule.after(1.0, "easy", {})
    assert rule.after(1.0, "medium", known) == known
    assert rule.after(1.0, "easy", known) == {"level": 1, "rewards": []}


def test_each_has_its_weight_spread_evenly() -> None:
    assert turn_order([3, 1]) == [0, 0, 1, 0]
    assert turn_order([1, 1, 1]) == [0, 1, 2]
    order = turn_order([5, 3, 2])
    assert [order.count(index) for index in range(3)] == [5, 3, 2]
    assert all(len(list(run)) <= 2 for _, run in itertools.groupby(order))


@pytest.mark.parametrize("weights", [[1], [3, 1], [2, 5, 3]])
@pytest.mark.parametrize("count", [1, 3, 4, 16])
def test_iterations_continue_where_the_last_one_ended(weights: list[int], count: int) -> None:
    played = [0] * len(weights)
    order = turn_order(weights)
    for number in range(20):
        shares = divided(weights, number * count, count)
        assert [before for before, _ in shares] == played
        assert sorted(place for _, places in shares for place in places) == list(range(count))
        for index, (_, places) in enumerate(shares):
            assert all(order[(number * count + place) % len(order)] == index for place in places)
            played[index] += len(places)
    total = sum(played)
    assert all(
        abs(each - total * weight / sum(weights)) < 1 + len(weights)
        for each, weight in zip(played, weights, strict=True)
    )
