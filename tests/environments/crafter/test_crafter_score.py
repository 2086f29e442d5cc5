"""Scores: the paper's formula, the ladder, and what they refuse."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.crafter.names import ACHIEVEMENTS
from environments.crafter.score import DEPTHS, crafter_score, ladder, success_rates, unlocked_share

episodes = st.lists(st.sets(st.sampled_from(ACHIEVEMENTS)), min_size=1, max_size=8)


def test_score_runs_from_0_to_100() -> None:
    assert crafter_score(dict.fromkeys(ACHIEVEMENTS, 0.0)) == 0.0
    assert crafter_score(dict.fromkeys(ACHIEVEMENTS, 100.0)) == pytest.approx(100.0)
    one = crafter_score({name: 100.0 if name == "wake_up" else 0.0 for name in ACHIEVEMENTS})
    assert one == pytest.approx(101 ** (1 / 22) - 1)


@given(episodes)
def test_score_lies_below_the_mean_rate(unlocked: list[set[str]]) -> None:
    rates = success_rates(unlocked)
    mean = math.fsum(rates.values()) / len(rates)
    assert -1e-9 <= crafter_score(rates) <= mean + 1e-9


@given(st.sets(st.sampled_from(ACHIEVEMENTS)), st.sampled_from(ACHIEVEMENTS))
def test_one_more_achievement_never_lowers_a_score(unlocked: set[str], more: str) -> None:
    assert 0.0 <= ladder(unlocked) <= ladder(unlocked | {more}) <= 1.0
    assert 0.0 <= unlocked_share(unlocked) <= unlocked_share(unlocked | {more}) <= 1.0


def test_the_ladder() -> None:
    rungs = ["collect_wood", "place_table", "make_wood_pickaxe", "collect_stone", "make_stone_pickaxe"]
    rungs += ["collect_iron", "make_iron_pickaxe", "collect_diamond"]
    assert [DEPTHS[name] for name in rungs] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert sum(DEPTHS.values()) == 76
    assert ladder(ACHIEVEMENTS) == 1.0
    assert ladder([]) == 0.0
    assert ladder(["collect_wood", "collect_wood", "place_table"]) == 3 / 76
    assert unlocked_share(["collect_wood", "wake_up"]) == 2 / 22


def test_success_rates_count_episodes() -> None:
    rates = success_rates([["wake_up", "wake_up"], ["wake_up", "eat_cow"], [], []])
    assert (rates["wake_up"], rates["eat_cow"], rates["collect_wood"]) == (50.0, 25.0, 0.0)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="episode"):
        success_rates([])
    with pytest.raises(ValueError, match="fly"):
        ladder(["fly"])
    with pytest.raises(ValueError, match=r"\b22\b"):
        crafter_score({"wake_up": 1.0})
    with pytest.raises(ValueError, match="percentage"):
        crafter_score(dict.fromkeys(ACHIEVEMENTS, math.nan))
