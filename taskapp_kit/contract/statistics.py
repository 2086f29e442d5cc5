"""Arithmetic that evaluations and jobs share. Sums are exact (`math.fsum`), so no result depends on the order of rollouts."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence


def clustered_standard_error(values: Sequence[float], clusters: Iterable[Hashable]) -> float | None:
    """The standard error of the mean of values that are independent between clusters only; None below two clusters.

    clusters: one for each value. Rollouts of one (environment, split, seed) are one cluster: they differ by chance in the
    policy alone.
    """
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    deviations: dict[Hashable, list[float]] = {}
    for value, cluster in zip(values, clusters, strict=True):
        deviations.setdefault(cluster, []).append(value - mean)
    count = len(deviations)
    if count < 2:
        return None
    spread = math.fsum(math.fsum(one) ** 2 for one in deviations.values())
    return math.sqrt(spread * count / (count - 1)) / len(values)
