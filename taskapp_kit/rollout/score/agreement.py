"""How far scores agree with labels: shares, Cohen's κ, Spearman's rank correlation. None where a number has no meaning."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Sequence


def accuracy(one: Sequence[Hashable], two: Sequence[Hashable]) -> float | None:
    """The share of pairs that are equal; None without any."""
    return sum(a == b for a, b in zip(one, two, strict=True)) / len(one) if one else None


def kappa(one: Sequence[Hashable], two: Sequence[Hashable]) -> float | None:
    """Cohen's κ: agreement beyond chance, 1 for all and 0 for what chance gives; None when chance alone agrees fully."""
    observed = accuracy(one, two)
    if observed is None:
        return None
    ones, twos = Counter(one), Counter(two)
    chance = math.fsum(count * twos[value] for value, count in ones.items()) / len(one) ** 2
    return None if chance == 1.0 else (observed - chance) / (1.0 - chance)


def spearman(one: Sequence[float], two: Sequence[float]) -> float | None:
    """The correlation of ranks, equal values sharing theirs; None for fewer than two pairs or without any variation."""
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
    """Of the pairs whose labels differ: how many the scores put in the same order, and how many there are."""
    same = told = 0
    for a in range(len(labels)):
        for b in range(a):
            if labels[a] != labels[b]:
                told += 1
                same += (scores[a] - scores[b]) * (labels[a] - labels[b]) > 0
    return same, told
