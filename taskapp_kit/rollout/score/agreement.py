"""Agreement of scores with labels: accuracy, Cohen's κ, Spearman's rank correlation. None where one is undefined."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Sequence


def accuracy(one: Sequence[Hashable], two: Sequence[Hashable]) -> float | None:
    """The share of pairs that are equal; None without pairs."""
    return sum(a == b for a, b in zip(one, two, strict=True)) / len(one) if one else None


def kappa(one: Sequence[Hashable], two: Sequence[Hashable]) -> float | None:
    """Cohen's κ: 1 for full agreement, 0 for the agreement expected by chance; None when that is already full."""
    observed = accuracy(one, two)
    if observed is None:
        return None
    ones, twos = Counter(one), Counter(two)
    chance = math.fsum(count * twos[value] for value, count in ones.items()) / len(one) ** 2
    return None if chance == 1.0 else (observed - chance) / (1.0 - chance)


def spearman(one: Sequence[float], two: Sequence[float]) -> float | None:
    """Spearman's rank correlation, with mean ranks for ties; None for fewer than two pairs or constant values."""
    if len(one) < 2 or len(set(one)) < 2 or len(set(two)) < 2:
        return None
    return max(-1.0, min(1.0, statistics.correlation(_ranks(one), _ranks(two))))


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values get the mean of theirs."""
    at: dict[float, list[int]] = {}
    for rank, value in enumerate(sorted(values), start=1):
        at.setdefault(value, []).append(rank)
    return [statistics.fmean(at[value]) for value in values]


def pair_agreement(scores: Sequence[float], labels: Sequence[float]) -> tuple[int, int]:
    """Counts the pairs with different labels: those that the scores order in the same way, and all of them."""
    same = differing = 0
    for a in range(len(labels)):
        for b in range(a):
            if labels[a] != labels[b]:
                differing += 1
                same += (scores[a] - scores[b]) * (labels[a] - labels[b]) > 0
    return same, differing
