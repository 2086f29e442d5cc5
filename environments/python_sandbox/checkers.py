"""Checkers for tasks with more than one right result. They are plain Python and accept any JSON.

A checker receives the arguments of a case, the description of a right result from the data file, and the actual result,
which is JSON from untrusted code. The checker returns whether the result is right. It never raises an exception.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

Checker = Callable[[list[Any], Any, Any], bool]


def _whole_numbers(value: Any, below: int) -> bool:
    """Return whether the value is a list of non-negative integers below a bound."""
    return type(value) is list and all(type(item) is int and 0 <= item < below for item in value)


def pair_with_sum(arguments: list[Any], expected: Any, result: Any) -> bool:
    """Two ascending indices of `weights` whose values sum to the target, or [] if none exist, as `expected` shows."""
    weights, target = arguments
    if not expected:
        return bool(type(result) is list and result == [])
    return (
        _whole_numbers(result, len(weights))
        and len(result) == 2
        and result[0] < result[1]
        and weights[result[0]] + weights[result[1]] == target
    )


def build_order(arguments: list[Any], expected: Any, result: Any) -> bool:
    """Every part once, each after the parts that it needs, or [] if no order exists, as `expected` shows."""
    count, needs = arguments
    if not expected:
        return bool(type(result) is list and result == [])
    if not _whole_numbers(result, count) or len(result) != count or len(set(result)) != count:
        return False
    index_of = {part: index for index, part in enumerate(result)}
    return all(index_of[a] > index_of[b] for a, b in needs)


def quiet_queens(arguments: list[Any], expected: Any, result: Any) -> bool:
    """A column for each row so that no queens attack each other, or [] if no placement exists, as `expected` shows."""
    (size,) = arguments
    if not expected:
        return bool(type(result) is list and result == [])
    if not _whole_numbers(result, size) or len(result) != size:
        return False
    falling = {row - column for row, column in enumerate(result)}
    rising = {row + column for row, column in enumerate(result)}
    return bool(len(set(result)) == len(falling) == len(rising) == size)


def longest_common_subsequence(arguments: list[Any], expected: Any, result: Any) -> bool:
    """A longest common subsequence of both strings. `expected` is its length."""
    if type(result) is not str or len(result) != expected:
        return False
    return all(_is_within(result, text) for text in arguments)


def _is_within(part: str, whole: str) -> bool:
    letters = iter(whole)
    return all(letter in letters for letter in part)


def four_by_four(arguments: list[Any], expected: Any, result: Any) -> bool:
    """The completed grid with 1 to 4 in each row, column and quarter, or [] if that is impossible, as `expected` shows."""
    (grid,) = arguments
    if not expected:
        return bool(type(result) is list and result == [])
    if type(result) is not list or len(result) != 4:
        return False
    if not all(_whole_numbers(row, 5) and len(row) == 4 for row in result):
        return False
    cells = [pair for given, filled in zip(grid, result, strict=True) for pair in zip(given, filled, strict=True)]
    unchanged = all(given in (0, cell) for given, cell in cells)
    quarters = [[result[r + i][c + j] for i in (0, 1) for j in (0, 1)] for r in (0, 2) for c in (0, 2)]
    groups = [*result, *zip(*result, strict=True), *quarters]
    return unchanged and all(sorted(group) == [1, 2, 3, 4] for group in groups)


def fair_shares(arguments: list[Any], expected: Any, result: Any) -> bool:
    """Ascending indices of things with half of the total value, or [] if that is impossible, as `expected` shows."""
    (values,) = arguments
    if not expected:
        return bool(type(result) is list and result == [])
    return (
        _whole_numbers(result, len(values))
        and all(a < b for a, b in pairwise(result))
        and 2 * sum(values[index] for index in result) == sum(values)
    )


def close_numbers(_arguments: list[Any], expected: Any, result: Any) -> bool:
    """As many floats as expected, each within 1e-6 of the expected one, relative or absolute. Integers do not count."""
    return (
        type(result) is list
        and len(result) == len(expected)
        and all(type(item) is float for item in result)
        and all(
            math.isclose(item, right, rel_tol=1e-6, abs_tol=1e-6) for item, right in zip(result, expected, strict=True)
        )
    )


CHECKERS: dict[str, Checker] = {
    checker.__name__: checker
    for checker in (
        pair_with_sum,
        build_order,
        quiet_queens,
        longest_common_subsequence,
        four_by_four,
        fair_shares,
        close_numbers,
    )
}
"""Checkers by their names in the data file."""
