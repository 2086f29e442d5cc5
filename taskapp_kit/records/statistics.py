"""Statistics for evaluations and jobs: means with intervals, paired differences, and their significance tests.

Rollouts with the same environment, split and seed differ only by the policy's randomness, so they form a *cluster*. Only
clusters are independent of each other. Sums are exact (`math.fsum`), and random numbers come from a separate generator with a
fixed seed, so results do not depend on the order of the rollouts, the names of the clusters or the process.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from operator import getitem, itemgetter
from statistics import NormalDist
from typing import Literal

from taskapp_kit.records.content import Json
from taskapp_kit.records.seeds import derived_rng

IntervalMethod = Literal["bootstrap", "t"]
Range = tuple[float, float]

UNBOUNDED: Range = (-math.inf, math.inf)
CONFIDENCE = 0.95
FEWEST_FOR_INTERVAL = 3
"""With fewer clusters, intervals are None. For two clusters, an interval by t would be too wide to be useful."""
RESAMPLES = 1000
"""The number of resamples in a bootstrap, and in a permutation test that does not enumerate all permutations."""
FEWEST_FOR_BOOTSTRAP = 30
"""With fewer clusters, the interval uses t, because the coverage of a bootstrap is not better and often worse."""
MOST_FOR_BOOTSTRAP = 1_000
"""With more clusters, the interval also uses t, because a bootstrap gives almost the same result but takes longer."""
ENUMERATED_CLUSTERS = 12
"""Up to this number of differing clusters, a permutation test enumerates all sign changes (2¹² = 4,096)."""
TIE = 1e-9
"""Paired values that differ by at most this are considered equal."""
POWER = 0.8
"""The probability with which `clusters_needed` clusters would show a difference of the observed size."""

_EXPANDED_FROM = 200
"""From this number of degrees of freedom on, a series expansion of t's quantile is accurate to 1e-9."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean, and the interval that contains the true mean with probability `confidence`.

    Attributes:
        low: The lower end, or None with fewer than FEWEST_FOR_INTERVAL clusters.
        high: The upper end, or None if `low` is None.
        standard_error: The standard error of the mean, or None with fewer than two clusters.
        n: The number of values.
        method: The method that was used, bootstrap or t.

    If all values in a sample are equal, the interval has width 0, although values outside of the sample may differ.
    """

    mean: float | None
    low: float | None
    high: float | None
    standard_error: float | None
    n: int
    clusters: int
    method: IntervalMethod
    confidence: float

    def to_json(self) -> dict[str, Json]:
        """Return the interval as JSON for a summary."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Differences (other − baseline) of paired values.

    Attributes:
        wins: The number of pairs in which the other value is higher.
        ties: The number of pairs that differ by at most TIE.
        losses: The number of pairs in which the other value is lower.
        sign_p: The p-value of the exact two-sided sign test over clusters with a difference. It is 1 if no cluster differs,
            and None for an empty list of pairs.
        permutation_p: The p-value of the two-sided permutation test, which flips the signs of clusters. It is 1 or
            None in the same cases as `sign_p`.
        clusters_needed: How many clusters are needed so that both the t test and the permutation test find a difference of
            this size and spread with probability POWER, at the interval's confidence. Assumes that the share of clusters that
            differ stays the same. None with fewer than two clusters, or if the mean difference is 0.
    """

    interval: Interval
    wins: int
    ties: int
    losses: int
    sign_p: float | None
    permutation_p: float | None
    clusters_needed: int | None

    @property
    def decided(self) -> bool:
        """Return whether both the interval and the permutation test exclude a difference of 0."""
        low, high, p = self.interval.low, self.interval.high, self.permutation_p
        if low is None or high is None or p is None:
            return False
        return (low > 0 or high < 0) and p < 1 - self.interval.confidence

    def to_json(self) -> dict[str, Json]:
        """Return the comparison as JSON."""
        return {**asdict(self), "interval": self.interval.to_json(), "decided": self.decided}


def clustered_standard_error(values: Sequence[float], clusters: Sequence[Hashable]) -> float | None:
    """Return the clustered standard error of the mean, or None with fewer than two clusters.

    Values in different clusters must be independent. clusters: The name of each value's cluster. If all values have the same
    environment and split, the seed is the cluster's name.
    """
    if not values:
        return None
    return _standard_error(_centred_sums(values, clusters, math.fsum(values) / len(values)))


def mean_interval(
    values: Sequence[float],
    clusters: Sequence[Hashable],
    *,
    method: IntervalMethod = "bootstrap",
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    bounds: Range = UNBOUNDED,
) -> Interval:
    """Return the mean of values and its interval. The interval is computed with a bootstrap or with Student's t.

    Both methods use whole clusters. The bootstrap uses percentiles that are expanded by t and √(C/(C−1)) for C clusters
    (Hesterberg 2015, doi:10.1080/00031305.2015.1089789, 3.2), because the coverage of plain percentiles is too low in small
    samples. With fewer than FEWEST_FOR_BOOTSTRAP clusters, or more than MOST_FOR_BOOTSTRAP, t is always used.

    Args:
        values: The sample.
        clusters: The name of each value's cluster.
        method: The preferred method.
        confidence: The probability with which the interval contains the true mean.
        resamples: The number of resamples of a bootstrap.
        bounds: The range within which every value should lie. The interval is clipped to it, unless a value is outside.
    """
    if not values:
        return Interval(None, None, None, None, 0, 0, method, confidence)
    mean = math.fsum(values) / len(values)
    sums = _centred_sums(values, clusters, mean)
    count = len(sums)
    if not FEWEST_FOR_BOOTSTRAP <= count <= MOST_FOR_BOOTSTRAP:
        method = "t"
    error = _standard_error(sums)
    if error is None or count < FEWEST_FOR_INTERVAL:
        return Interval(mean, None, None, error, len(values), count, method, confidence)
    reach = t_quantile((1 + confidence) / 2, count - 1)
    low, high = -reach * error, reach * error
    if method == "bootstrap" and error > 0:
        tail = NormalDist().cdf(-math.sqrt(count / (count - 1)) * reach)
        means = sorted(_resampled_means(sums, resamples))
        low, high = _percentile(means, tail), _percentile(means, 1 - tail)
    lowest, highest = bounds if bounds[0] - TIE <= min(values) and max(values) <= bounds[1] + TIE else UNBOUNDED
    low, high = max(mean + low, lowest), min(mean + high, highest)
    return Interval(mean, low, high, error, len(values), count, method, confidence)


def paired_difference(
    baseline: Sequence[float],
    other: Sequence[float],
    clusters: Sequence[Hashable],
    *,
    method: IntervalMethod = "bootstrap",
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    bounds: Range = UNBOUNDED,
) -> PairedDifference:
    """Compare baseline[i] with other[i]. Both belong to clusters[i]. bounds: The range of the possible differences."""
    differences = [0.0 if abs(two - one) <= TIE else two - one for one, two in zip(baseline, other, strict=True)]
    interval = mean_interval(
        differences, clusters, method=method, confidence=confidence, resamples=resamples, bounds=bounds
    )
    sums = [total for total, _ in _centred_sums(differences, clusters, 0.0)]
    wins = sum(difference > 0 for difference in differences)
    losses = sum(difference < 0 for difference in differences)
    return PairedDifference(
        interval=interval,
        wins=wins,
        ties=len(differences) - wins - losses,
        losses=losses,
        sign_p=sign_test(sums),
        permutation_p=permutation_test(sums, resamples=resamples),
        clusters_needed=_clusters_needed(interval, sum(abs(total) > TIE for total in sums)),
    )


def sign_test(differences: Sequence[float]) -> float | None:
    """Return the two-sided p-value of the exact sign test, or None if `differences` is empty.

    Differences of at most TIE are ignored. The differences must be independent of each other.
    """
    if not differences:
        return None
    positive, negative = (sum(sign * value > TIE for value in differences) for sign in (1, -1))
    signed = positive + negative
    term = tail = 1
    for successes in range(1, min(positive, negative) + 1):
        term = term * (signed - successes + 1) // successes
        tail += term
    return min(1.0, 2 * tail / (1 << signed))


def permutation_test(differences: Sequence[float], *, resamples: int = RESAMPLES) -> float | None:
    """Return the two-sided p-value of the paired permutation test, or None if `differences` is empty.

    The test flips the signs of the differences, which must be independent of each other. With at most ENUMERATED_CLUSTERS
    differences that are not 0, p is exact. With more, p is (1 + reached)/(1 + resamples), so it is never 0. `reached` is the
    number of resamples whose absolute sum is at least the observed one.
    """
    if not differences:
        return None
    moved = sorted(abs(value) for value in differences if abs(value) > TIE)
    reached_at = abs(math.fsum(differences)) * (1 - TIE) - TIE
    if len(moved) <= ENUMERATED_CLUSTERS:
        totals = _signed_sums(moved)
        return sum(abs(total) >= reached_at for total in totals) / len(totals)
    # One random byte determines the signs of eight clusters, and is the index of their sum in a table.
    tables = [_signed_sums([*moved[first : first + 8], *[0.0] * 8][:8]) for first in range(0, len(moved), 8)]
    signs = derived_rng("permutation test", len(moved)).randbytes
    reached = sum(abs(math.fsum(map(getitem, tables, signs(len(tables))))) >= reached_at for _ in range(resamples))
    return (1 + reached) / (1 + resamples)


def _signed_sums(sizes: Sequence[float]) -> list[float]:
    """Return one sum of the sizes for each possible combination of their signs."""
    totals = [0.0]
    for size in sizes:
        totals = [total + sign for total in totals for sign in (size, -size)]
    return totals


@lru_cache(maxsize=256)
def t_quantile(probability: float, degrees: int) -> float:
    """Return a quantile of Student's t with the given degrees of freedom, for a probability in [0.5, 1)."""
    if degrees >= _EXPANDED_FROM:  # Abramowitz and Stegun 26.7.5
        z = NormalDist().inv_cdf(probability)
        terms = (
            (z**3 + z) / 4,
            (5 * z**5 + 16 * z**3 + 3 * z) / 96,
            (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        )
        return z + math.fsum(term / float(degrees) ** power for power, term in enumerate(terms, start=1))
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_within(middle, degrees) < 2 * probability - 1 else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


def _t_within(angle: float, degrees: int) -> float:
    """Return the probability that |t| ≤ √degrees · tan(angle). See Abramowitz and Stegun 26.7.3 and 26.7.4."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    term, terms = (cosine if odd else 1.0), []
    for step in range(2 + odd, degrees + 1, 2):
        terms.append(term)
        term *= cosine**2 * (step - 1) / step
    series = sine * math.fsum(terms)
    return 2 / math.pi * (angle + series) if odd else series


def _centred_sums(values: Sequence[float], clusters: Sequence[Hashable], centre: float) -> list[tuple[float, int]]:
    """Subtract `centre` from each value. Return, for each cluster, the sum of its values and their number.

    The list is sorted, so that the clusters' names do not matter.
    """
    grouped: dict[Hashable, list[float]] = {}
    for value, cluster in zip(values, clusters, strict=True):
        grouped.setdefault(cluster, []).append(value - centre)
    return sorted((math.fsum(group), len(group)) for group in grouped.values())


def _standard_error(sums: Sequence[tuple[float, int]]) -> float | None:
    """Return the standard error of the mean from clusters' centered sums: √(Σ sum² · C/(C−1)) / n."""
    if len(sums) < 2:
        return None
    spread = math.fsum(total * total for total, _ in sums)
    return math.sqrt(spread * len(sums) / (len(sums) - 1)) / sum(count for _, count in sums)


def _resampled_means(sums: Sequence[tuple[float, int]], resamples: int) -> Iterator[float]:
    """Yield the mean of each resample: as many clusters as the sample has, drawn with replacement. `sums` are centered."""
    count = len(sums)
    choices = derived_rng("bootstrap", count).choices
    sizes = {size for _, size in sums}
    if len(sizes) == 1:
        totals, values = [total for total, _ in sums], count * sizes.pop()
        for _ in range(resamples):
            yield math.fsum(choices(totals, k=count)) / values
        return
    total_of, size_of = itemgetter(0), itemgetter(1)
    for _ in range(resamples):
        drawn = choices(sums, k=count)
        yield math.fsum(map(total_of, drawn)) / sum(map(size_of, drawn))


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Return the interpolated value below which `share` of the values are, limited to the first and the last value."""
    place = min(max(share * (len(ordered) + 1) - 1, 0.0), len(ordered) - 1.0)
    before = int(place)
    after = min(before + 1, len(ordered) - 1)
    return ordered[before] + (place - before) * (ordered[after] - ordered[before])


def _clusters_needed(interval: Interval, differing: int) -> int | None:
    """Return how many clusters are enough for both the t test and the permutation test.

    Returns None if the mean is 0 or the standard error is unknown. differing: How many clusters of the sample differ.
    """
    mean, error = interval.mean, interval.standard_error
    if not mean or error is None:
        return None
    normal = NormalDist()
    reach = normal.inv_cdf((1 + interval.confidence) / 2) + normal.inv_cdf(POWER)
    needed = math.ceil((reach * error / mean) ** 2 * interval.clusters)
    # With k differing clusters, the lowest possible p of the permutation test is 2/2^k, when all signs are equal.
    fewest = math.floor(1 + math.log2(1 / (1 - interval.confidence))) + 1
    share, needed = differing / interval.clusters, max(needed, fewest)
    while _chance_of_fewer(fewest, needed, share) > 1 - POWER:
        needed += 1
    return needed


def _chance_of_fewer(fewest: int, clusters: int, share: float) -> float:
    """Return the probability that fewer than `fewest` clusters differ, if each cluster differs with probability `share`."""
    return math.fsum(
        math.comb(clusters, count) * share**count * (1 - share) ** (clusters - count) for count in range(fewest)
    )
