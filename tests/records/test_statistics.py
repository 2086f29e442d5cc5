from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from itertools import product
from statistics import fmean, stdev

import pytest

from taskapp_kit.records.statistics import (
    FEWEST_FOR_BOOTSTRAP,
    MOST_FOR_BOOTSTRAP,
    Interval,
    IntervalMethod,
    clustered_standard_error,
    mean_interval,
    paired_difference,
    permutation_test,
    sign_test,
    t_quantile,
)

METHODS: tuple[IntervalMethod, ...] = ("bootstrap", "t")


# -- by hand and by tables --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("degrees", "value"),
    [(1, 12.7062047), (2, 4.3026527), (3, 3.1824463), (9, 2.2621572), (30, 2.0422725), (199, 1.9719565), (200, 1.9718962), (1000, 1.9623391)],
)  # fmt: skip
def test_the_quantiles_of_t_are_those_of_tables(degrees: int, value: float) -> None:
    assert t_quantile(0.975, degrees) == pytest.approx(value, abs=1e-6)


def test_the_interval_by_t_is_the_one_of_textbooks() -> None:
    values = [0.25, 1.0, 0.5, 0.0]
    made = mean_interval(values, range(4), method="t")
    error = stdev(values) / math.sqrt(4)
    assert made.mean == fmean(values)
    assert made.standard_error == pytest.approx(error) == clustered_standard_error(values, range(4))
    assert made.high == pytest.approx(fmean(values) + 3.1824463 * error)
    assert (made.low, made.n, made.clusters) == (pytest.approx(fmean(values) - 3.1824463 * error), 4, 4)


@pytest.mark.parametrize("method", METHODS)
def test_too_few_clusters_have_a_mean_and_no_interval(method: IntervalMethod) -> None:
    assert mean_interval([], [], method=method) == Interval(None, None, None, None, 0, 0, method, 0.95)
    one = mean_interval([1.0, 2.0], ["a", "a"], method=method)
    assert (one.mean, one.low, one.high, one.standard_error, one.n, one.clusters) == (1.5, None, None, None, 2, 1)
    two = mean_interval([0.0, 1.0], ["a", "b"], method=method)
    assert (two.mean, two.low, two.high, two.standard_error, two.clusters) == (0.5, None, None, 0.5, 2)


def test_a_small_or_very_large_sample_is_not_bootstrapped_and_the_interval_says_so() -> None:
    few, enough, many = FEWEST_FOR_BOOTSTRAP - 1, FEWEST_FOR_BOOTSTRAP, MOST_FOR_BOOTSTRAP + 1
    for clusters, method in ((few, "t"), (enough, "bootstrap"), (many, "t")):
        assert mean_interval([float(n) for n in range(clusters)], range(clusters)).method == method


def test_repeated_samples_of_a_seed_make_no_interval_narrower() -> None:
    values = [float(seed % 3) for seed in range(30)]
    once = mean_interval(values, range(30))
    thrice = mean_interval(
        [value for value in values for _ in range(3)], [seed for seed in range(30) for _ in range(3)]
    )
    assert thrice.mean == once.mean
    assert thrice.low == pytest.approx(once.low)
    assert thrice.high == pytest.approx(once.high)


def test_a_skewed_sample_has_a_skewed_bootstrap_interval() -> None:
    values = [random.Random(seed).expovariate(1) ** 2 for seed in range(40)]
    made = mean_interval(values, range(40))
    assert made.mean is not None and made.low is not None and made.high is not None
    assert made.high - made.mean > 1.1 * (made.mean - made.low)


@pytest.mark.parametrize("method", METHODS)
def test_no_result_depends_on_the_order_or_on_the_names_of_clusters(method: IntervalMethod) -> None:
    numbers = random.Random(1)
    pairs = [(numbers.gauss(0, 10.0 ** (n % 9)), numbers.gauss(0, 1), n // 2) for n in range(61)]
    mixed = numbers.sample(pairs, len(pairs))
    first, second = (
        paired_difference([one for one, _, _ in some], [two for _, two, _ in some], clusters, method=method)
        for some, clusters in (
            (pairs, [("adder", "test", seed) for *_, seed in pairs]),
            (mixed, [seed for *_, seed in mixed]),
        )
    )
    assert first == second


def test_the_global_generator_is_neither_read_nor_moved() -> None:
    values = [float(n % 7) for n in range(50)]
    random.seed(1)
    before = random.getstate()
    first = paired_difference(values, values[::-1], range(50))
    assert random.getstate() == before
    random.seed(2)
    assert paired_difference(values, values[::-1], range(50)) == first


# -- paired -----------------------------------------------------------------------------------------------------------


def test_wins_ties_and_losses_are_of_pairs_and_floats_that_are_nearly_equal_tie() -> None:
    made = paired_difference([0.1 + 0.2, 1.0, 0.0, 0.0], [0.3, 0.0, 1.0, 1.0], range(4))
    assert (made.wins, made.ties, made.losses) == (2, 1, 1)
    assert made.interval.mean == 0.25
    assert not made.decided


def test_equal_pairs_differ_in_nothing_and_are_never_decided() -> None:
    made = paired_difference([0.5] * 20, [0.5] * 20, range(20))
    assert (made.interval.mean, made.interval.low, made.interval.high) == (0.0, 0.0, 0.0)
    assert (made.sign_p, made.permutation_p, made.clusters_needed, made.decided) == (1.0, 1.0, None, False)


def test_without_a_pair_nothing_is_said() -> None:
    made = paired_difference([], [], [])
    assert (made.interval.mean, made.sign_p, made.permutation_p, made.clusters_needed) == (None, None, None, None)


@pytest.mark.parametrize(
    ("differences", "p"),
    [([1.0] * 5, 2 / 32), ([1.0] * 5 + [-1.0], 14 / 64), ([1.0, -1.0], 1.0), ([0.0, 0.0, 2.0], 1.0), ([-1.0] * 10 + [1.0], 24 / 2048)],
)  # fmt: skip
def test_the_sign_test_is_the_exact_binomial(differences: list[float], p: float) -> None:
    assert sign_test(differences) == p


def test_the_permutation_test_enumerates_few_clusters() -> None:
    differences = [0.3, -0.1, 0.5, 0.2, 0.0, 0.7, -0.4]
    total = sum(differences)
    signed = [sum(s * d for s, d in zip(signs, differences, strict=True)) for signs in product((1, -1), repeat=7)]
    assert permutation_test(differences) == sum(abs(one) >= abs(total) - 1e-9 for one in signed) / 2**7


def test_the_permutation_test_of_many_is_near_the_exact_one_and_never_0() -> None:
    ones = [1.0] * 22 + [-1.0] * 10  # then it is the sign test
    assert permutation_test(ones, resamples=20_000) == pytest.approx(sign_test(ones), abs=0.005)
    assert permutation_test([1.0 + seed / 7 for seed in range(100)]) == 1 / 1001


def test_the_number_of_clusters_that_would_decide() -> None:
    numbers = random.Random(3)
    baseline = [numbers.gauss(0, 1) for _ in range(50)]
    other = [value + numbers.gauss(0.2, 1) for value in baseline]
    made = paired_difference(baseline, other, range(50))
    assert made.interval.mean is not None
    differences = [two - one for one, two in zip(baseline, other, strict=True)]
    assert made.clusters_needed == math.ceil((2.8015852 * stdev(differences) / fmean(differences)) ** 2)


@pytest.mark.parametrize(("differing", "needed"), [(5, 6), (4, 9)])
def test_no_fewer_clusters_decide_than_the_permutation_test_needs(differing: int, needed: int) -> None:
    """Five clusters without spread have an interval of width 0, and a p of 2/32: a sixth that differs has 2/64."""
    losses = [-1.0] * differing + [0.0] * (5 - differing)
    assert paired_difference([0.0] * 5, losses, range(5)).clusters_needed == needed
    probability = sum(
        math.comb(needed, k) * (differing / 5) ** k * (1 - differing / 5) ** (needed - k) for k in range(6, needed + 1)
    )
    assert probability >= 0.8
    assert [permutation_test([-1.0] * count) for count in (5, 6)] == [2 / 32, 2 / 64]


# -- what the intervals promise ---------------------------------------------------------------------------------------

NOMINAL, SMALL, LARGE = 0.95, 0.05, 0.3


def binary(numbers: random.Random, chance: float) -> float:
    """A task that is solved or not. Its mean is the chance."""
    return float(numbers.random() < chance)


def graded(numbers: random.Random, chance: float) -> float:
    """0, or a skewed part of 1. Its mean is a quarter of the chance."""
    return numbers.random() ** 3 if numbers.random() < chance else 0.0


MEAN_OF = {binary: 1.0, graded: 0.25}


def two_policies(
    reward: Callable[[random.Random, float], float], effect: float, seeds: int, samples: int, run: int
) -> tuple[list[float], list[float], list[int]]:
    """Rewards of two policies in pairs, and each pair's seed; the true difference is `effect` times the reward's mean.

    Seeds are easy or hard for both, and some favour the one, some the other, so that the samples of a seed are alike.
    """
    numbers = random.Random(f"{reward.__name__} {effect} {seeds} {samples} {run}")
    one, two, clusters = [], [], []
    for seed in range(seeds):
        chance, favour = numbers.choice((0.3, 0.4, 0.5)), numbers.choice((-0.2, 0.2))
        for _ in range(samples):
            one.append(reward(numbers, chance - favour))
            two.append(reward(numbers, chance + favour + effect))
            clusters.append(seed)
    return one, two, clusters


def share(found: Sequence[bool]) -> float:
    return sum(found) / len(found)


def band(runs: int) -> float:
    """Three standard deviations of a share of NOMINAL in that many runs."""
    return 3 * math.sqrt(NOMINAL * (1 - NOMINAL) / runs)


def covers(interval: Interval, truth: float) -> bool:
    assert interval.low is not None and interval.high is not None
    return interval.low <= truth <= interval.high


def promise_holds(
    reward: Callable[[random.Random, float], float], effect: float, seeds: int, samples: int, *, runs: int,
    method: IntervalMethod = "bootstrap", resamples: int = 1000, tail: float = 0.0,
) -> None:  # fmt: skip
    """tail: by how much less a reward that is mostly 0 and rarely large is covered."""
    truth = effect * MEAN_OF[reward]
    covered, naive, decided, rejected = [], [], [], []
    for run in range(runs):
        one, two, clusters = two_policies(reward, effect, seeds, samples, run)
        made = paired_difference(one, two, clusters, method=method, resamples=resamples)
        covered.append(covers(made.interval, truth))
        decided.append(made.decided)
        rejected.append(made.permutation_p is not None and made.permutation_p < 1 - NOMINAL)
        if samples > 1:
            differences = [after - before for before, after in zip(one, two, strict=True)]
            naive.append(covers(mean_interval(differences, range(len(one)), method="t"), truth))
    found = f"{reward.__name__} {effect} {seeds} {samples} {method}: {share(covered)}, decided {share(decided)}"
    assert NOMINAL - band(runs) - tail <= share(covered) <= NOMINAL + band(runs), found
    if effect == 0:
        assert share(rejected) <= 1 - NOMINAL + band(runs), found
        assert share(decided) <= share(rejected), found
    if effect == LARGE and reward is binary and seeds >= 30:
        assert share(decided) >= 0.4, found
    if naive and reward is binary:
        assert share(naive) < 0.85, f"samples of a seed count as independent, and {share(naive)} are covered"


@pytest.mark.parametrize("samples", [1, 6])
@pytest.mark.parametrize("effect", [0.0, SMALL, LARGE])
def test_intervals_cover_what_they_promise(effect: float, samples: int) -> None:
    promise_holds(binary, effect, 30, samples, runs=200, resamples=299)


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("seeds", "samples"), [(12, 1), (30, 6), (80, 1)])
@pytest.mark.parametrize("effect", [0.0, SMALL, LARGE])
@pytest.mark.parametrize("reward", [binary, graded])
def test_intervals_cover_what_they_promise_in_the_large(
    reward: Callable[[random.Random, float], float], effect: float, seeds: int, samples: int, method: IntervalMethod
) -> None:
    promise_holds(reward, effect, seeds, samples, runs=400, method=method, tail=0.02 if reward is graded else 0.0)
