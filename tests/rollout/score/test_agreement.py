"""Agreement: figures worked out by hand, and what has no meaning is None."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.rollout.score.calibration import accuracy, kappa, pair_agreement, spearman


def test_accuracy() -> None:
    assert accuracy([1, 0, 1, 1], [1, 0, 0, 1]) == 0.75
    assert accuracy([], []) is None


def test_kappa_of_a_worked_table() -> None:
    # 20 both yes, 5 and 10 apart, 15 both no: observed 0.7, by chance 0.5
    one = [1] * 25 + [0] * 25
    two = [1] * 20 + [0] * 5 + [1] * 10 + [0] * 15
    assert kappa(one, two) == pytest.approx(0.4)
    assert kappa([1, 2, 3], [1, 2, 3]) == 1.0
    assert kappa([0, 1], [1, 0]) == -1.0
    assert kappa([1, 1], [1, 1]) is None
    assert kappa([], []) is None


def test_spearman() -> None:
    assert spearman([106, 100, 86, 101, 99, 103, 97, 113, 112, 110], [7, 27, 2, 50, 28, 29, 20, 12, 6, 17]) == (
        pytest.approx(-29 / 165)
    )
    assert spearman([1, 2, 3], [1, 10, 100]) == 1.0
    assert spearman([1, 2, 2, 3], [1, 3, 2, 4]) == pytest.approx(0.9486833)
    assert spearman([1, 1], [1, 2]) is None
    assert spearman([1], [1]) is None


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=20))
def test_all_lie_within_their_bounds(pairs: list[tuple[float, float]]) -> None:
    one, two = [a for a, _ in pairs], [b for _, b in pairs]
    for value in (spearman(one, two), kappa(one, two)):
        assert value is None or -1.0 - 1e-9 <= value <= 1.0 + 1e-9
    same, told = pair_agreement(one, two)
    assert 0 <= same <= told


def test_pairs() -> None:
    assert pair_agreement([0.9, 0.5, 0.1], [1, 0, 0]) == (2, 2)
    assert pair_agreement([0.5, 0.5], [1, 0]) == (0, 1)
    assert pair_agreement([0.1, 0.9], [1, 0]) == (0, 1)
