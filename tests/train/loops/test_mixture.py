"""Which groups are whose."""

from __future__ import annotations

import itertools

import pytest

from taskapp_kit.train.loops.settings import divided, turn_order


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
