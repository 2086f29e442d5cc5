from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.evaluate.summary import PassRates, pass_at_k, pass_hat_k, shown_ks


@given(outcomes=st.lists(st.booleans(), min_size=1, max_size=9), k=st.integers(1, 9))
def test_both_rates_are_the_shares_of_all_subsets(outcomes: list[bool], k: int) -> None:
    if k > len(outcomes):
        with pytest.raises(ValueError, match="expected"):
            pass_at_k(len(outcomes), sum(outcomes), k)
        return
    subsets = list(itertools.combinations(outcomes, k))
    assert pass_at_k(len(outcomes), sum(outcomes), k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    assert pass_hat_k(len(outcomes), sum(outcomes), k) == pytest.approx(sum(map(all, subsets)) / len(subsets))


def test_many_samples_are_exact() -> None:
    assert pass_at_k(10_000, 1, 10_000) == 1.0
    assert pass_at_k(10_000, 1, 1) == pytest.approx(1e-4)
    assert pass_hat_k(10_000, 9_999, 10_000) == 0.0


@given(st.integers(0, 10_000))
def test_the_ks_that_are_shown(most: int) -> None:
    ks = shown_ks(most)
    assert ks == sorted(set(ks))
    assert len(ks) <= 20
    assert ks == [] if most == 0 else (ks[0], ks[-1]) == (1, most)


def test_each_seed_counts_once_and_only_where_it_has_k_scored_samples() -> None:
    rates = PassRates(at=0.5)
    for seed, rewards in {0: (1.0, 0.0, 0.5, 0.49), 1: (0.0, 0.0), 2: (1.0,)}.items():
        for reward in rewards:
            rates.add(reward, seed)
    told = rates.to_json()
    assert (told["at"], told["samples"], told["passed"]) == (0.5, 7, 3)
    assert told["k"]["1"]["pass_at_k"]["mean"] == pytest.approx((0.5 + 0 + 1) / 3)
    assert told["k"]["2"]["pass_at_k"]["mean"] == pytest.approx(((1 - 1 / 6) + 0) / 2)
    assert told["k"]["2"]["pass_hat_k"]["mean"] == pytest.approx((1 / 6 + 0) / 2)
    assert [rates["seeds"] for rates in told["k"].values()] == [3, 2, 1, 1]
    assert told["k"]["4"]["pass_at_k"] == {"mean": 1.0, "standard_error": None}
    assert PassRates().to_json() == {"at": 1.0, "samples": 0, "passed": 0, "k": {}}
