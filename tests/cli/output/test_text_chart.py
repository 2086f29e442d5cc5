from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.cli.output.text_chart import curve


def test_a_rising_curve_climbs_from_the_lowest_line_to_the_highest() -> None:
    lines = curve([0.0, 0.5, 1.0], height=2)
    assert lines == ["1 │  █", "0 │▁██"]


def test_nothing_known_draws_nothing() -> None:
    assert curve([]) == []
    assert curve([None, math.nan]) == []


def test_an_undefined_value_leaves_its_column_empty() -> None:
    assert [line[-2] for line in curve([1.0, None, 1.0], height=3)] == [" ", " ", " "]


def test_one_level_is_drawn_in_the_middle() -> None:
    assert curve([0.25, 0.25], height=4) == ["0.25 │  ", "     │  ", "     │██", "0.25 │██"]


@given(st.lists(st.none() | st.floats(-1e6, 1e6), max_size=500), st.integers(1, 80), st.integers(2, 10))
def test_it_never_leaves_its_frame(values: list[float | None], width: int, height: int) -> None:
    lines = curve(values, width=width, height=height)
    assert len(lines) == (height if any(value is not None for value in values) else 0)
    assert all(len(line.partition("│")[2]) <= width for line in lines)
    if lines:  # the smallest value is seen, too
        assert any(letter != " " for letter in lines[-1].partition("│")[2])
