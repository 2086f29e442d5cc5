"""Statistics shared by evaluations and jobs. Sums are exact (`math.fsum`): no result depends on the order of rollouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby


def clustered_standard_error(values: Sequence[float], clusters: Sequence[int]) -> float | None:
    """The standard error of the mean of values that are independent only between clusters; None below two clusters.

    clusters: the number of each value's cluster, the seed where the values have one environment and split. Rollouts of one
    (environment, split, seed) are one cluster: they differ by chance in the policy alone.
    """
    if not values:
        return None
    mean = math.fsum(values) / len(values)
    order = sorted(range(len(values)), key=clusters.__getitem__)
    sums = [math.fsum(values[index] - mean for index in one) for _, one in groupby(order, key=clusters.__getitem__)]
    if len(sums) < 2:
        return None
    spread = math.fsum(total**2 for total in sums)
    return math.sqrt(spread * len(sums) / (len(sums) - 1)) / len(values)
