"""Advantages, computed by comparing the rollouts of a group with each other.

The return of a failed rollout is None. It does not count in any mean, and the rollout's advantage is None.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Literal

Scale = Literal["none", "group", "batch"]
"""The divisor of differences from the mean: 1, or the standard deviation of the returns in the group or the batch."""

EPSILON = 1e-4
"""Added to the standard deviation in the divisor, as in TRL."""

Returns = Mapping[str, Sequence[float | None]]
"""The returns of each group's rollouts. The return of a failed rollout is None."""


def group_advantages(returns: Returns, scale: Scale = "none") -> dict[str, list[float | None]]:
    """Return the advantage of every rollout, in the shape of `returns`.

    The advantage is (return - mean of the group) / scale. It is None for a failed rollout, and exactly 0.0 if all
    returns of the group are equal or only one rollout of the group succeeded. Standard deviations are sample deviations
    (n - 1). Raises ValueError if a return is not finite.
    """
    every = [each for group in returns.values() for each in _survivors(group)]
    if not all(math.isfinite(each) for each in every):
        raise ValueError("A return is not finite. Expected a finite number, or None for a failed rollout.")
    batch = _deviation(every) if scale == "batch" else 0.0
    advantages: dict[str, list[float | None]] = {}
    for name, group in returns.items():
        survivors = _survivors(group)
        if len(set(survivors)) < 2:  # a rounded mean would differ slightly from the equal returns
            advantages[name] = [None if each is None else 0.0 for each in group]
            continue
        mean = math.fsum(survivors) / len(survivors)
        divisor = {"none": 1.0, "group": _deviation(survivors) + EPSILON, "batch": batch + EPSILON}[scale]
        advantages[name] = [None if each is None else (each - mean) / divisor for each in group]
    return advantages


def turn_advantages(
    returns: Mapping[str, Sequence[Sequence[float] | None]], scale: Scale = "none"
) -> dict[str, list[list[float] | None]]:
    """Return the advantage of every turn. Each turn is compared with the turns at the same index in its group.

    `returns` contains the return of each turn by group and rollout, or None for a failed rollout. The advantage of a
    turn that no other rollout of the group reached is 0.0. Raises ValueError if a return is not finite.
    """
    by_turn: dict[str, list[float | None]] = {}
    for name, group in returns.items():
        for index, column in enumerate(zip_longest(*(rollout or () for rollout in group))):
            by_turn[f"{index} {name}"] = list(column)
    compared = group_advantages(by_turn, scale)
    return {
        name: [
            None if rollout is None else [compared[f"{index} {name}"][place] or 0.0 for index in range(len(rollout))]
            for place, rollout in enumerate(group)
        ]
        for name, group in returns.items()
    }


def returns_to_go(rewards: Sequence[float], discount: float) -> list[float]:
    """Return, for each turn, the discounted sum of its reward and all later rewards."""
    total, reversed_returns = 0.0, []
    for reward in reversed(rewards):
        total = reward + discount * total
        reversed_returns.append(total)
    return reversed_returns[::-1]


def _survivors(group: Sequence[float | None]) -> list[float]:
    return [each for each in group if each is not None]


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0
