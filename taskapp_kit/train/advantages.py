"""The advantages of rollouts, which are compared within groups.

The return of a failed rollout is None. It is omitted from all means and gets no advantage.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Literal

Scale = Literal["none", "group", "batch"]
"""The divisor of a difference from the mean: 1, or the standard deviation of the returns of the group or the batch."""

EPSILON = 1e-4
"""Added to a standard deviation before dividing by it, as in TRL."""

Returns = Mapping[str, Sequence[float | None]]
"""The returns of the rollouts of each group, None for a failed rollout."""


def group_advantages(returns: Returns, scale: Scale = "none") -> dict[str, list[float | None]]:
    """Return (return - mean of the group) / scale for every rollout, None for failed rollouts, in the same shape.

    If all returns of a group are equal, or only one rollout did not fail, the advantages are exactly 0.0. Standard
    deviations are sample deviations (n - 1). Raises ValueError for a return that is not finite.
    """
    every = [each for group in returns.values() for each in _survivors(group)]
    if not all(math.isfinite(each) for each in every):
        raise ValueError("a return is not finite; expected a finite number, or None for a failed rollout")
    batch = _deviation(every) if scale == "batch" else 0.0
    advantages: dict[str, list[float | None]] = {}
    for name, group in returns.items():
        survivors = _survivors(group)
        if len(set(survivors)) < 2:  # a rounded mean would differ from equal returns
            advantages[name] = [None if each is None else 0.0 for each in group]
            continue
        mean = math.fsum(survivors) / len(survivors)
        divisor = {"none": 1.0, "group": _deviation(survivors) + EPSILON, "batch": batch + EPSILON}[scale]
        advantages[name] = [None if each is None else (each - mean) / divisor for each in group]
    return advantages


def turn_advantages(
    returns: Mapping[str, Sequence[Sequence[float] | None]], scale: Scale = "none"
) -> dict[str, list[list[float] | None]]:
    """Return the advantages of turns: each turn is compared with the turns of the same index in its group.

    returns: the return of each turn, by group and rollout; None for a failed rollout. A turn that no other rollout of the
    group reached gets 0.0. Raises the same ValueError as `group_advantages`.
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
    """Return the discounted sum of rewards from each turn on."""
    total, reversed_returns = 0.0, []
    for reward in reversed(rewards):
        total = reward + discount * total
        reversed_returns.append(total)
    return reversed_returns[::-1]


def _survivors(group: Sequence[float | None]) -> list[float]:
    return [each for each in group if each is not None]


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0
