"""Counts and amounts in words."""

from __future__ import annotations

import pytest

from taskapp_kit.records.formatting import counted, cut, dollars


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        (0.0, "$0"), (1234.5, "$1,234.50"), (1.0, "$1.00"), (0.25, "$0.2500"), (0.0123, "$0.0123"), (0.001, "$0.0010"),
        (0.000456, "$0.00046"), (0.0000451, "$0.000045"), (1e-9, "$0.0000000010"),
    ],
)  # fmt: skip
def test_small_amounts_are_not_rounded_to_nothing(cost: float, words: str) -> None:
    assert dollars(cost) == words


def test_counted_uses_singular_and_plural() -> None:
    assert [counted(many, "seed") for many in (0, 1, 2)] == ["0 seeds", "1 seed", "2 seeds"]


@pytest.mark.parametrize(("most", "words"), [(1, "…"), (3, "ab…"), (4, "abcd"), (9, "abcd")])
def test_what_is_cut_ends_in_an_ellipsis_within_the_width(most: int, words: str) -> None:
    assert cut("abcd", most) == words
