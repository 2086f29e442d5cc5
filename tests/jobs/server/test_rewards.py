"""Rewards and what they amount to."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.evaluate.summary import Column
from taskapp_kit.jobs.server.engine import RolloutOutcome
from taskapp_kit.jobs.server.rewards import RewardBlend, reward_of, summarise


@pytest.mark.parametrize(
    ("answer", "blend", "expected"),
    [
        ({"reward": 0.5, "metrics": {"mean_return": 1.0}}, None, 0.5),
        ({"reward": None, "metrics": {"mean_return": 1.0}}, None, None),
        ({"metrics": {"mean_return": 1}}, None, 1.0),
        ({"metrics": {"mean_return": None}}, None, None),
        ({"reward": 9, "metrics": {"mean_return": 2.0, "outcome_score": 0.5}}, RewardBlend(1.0, 0.0, 2.0), 3.0),
        ({"reward": 9, "metrics": {"mean_return": 2.0, "outcome_score": None}}, RewardBlend(1.0, 0.0, 2.0), None),
        ({"reward": 9, "metrics": {"mean_return": 2.0}}, RewardBlend(1.0, 0.0, 0.0), 2.0),
        ({"metrics": {"mean_return": 2.0}}, RewardBlend(0.0, 1.0, 0.0), None),
    ],
)
def test_the_reward_of_an_answer(answer: dict[str, Any], blend: RewardBlend | None, expected: float | None) -> None:
    assert reward_of(answer, blend) == expected


def a_rollout(place: int, reward: float | None, boundary: str | None = None, seed: int = 0) -> RolloutOutcome:
    status = "failed" if boundary else "terminated"
    return RolloutOutcome("train", 1, place, 0, seed, status, reward, boundary=boundary)


ROLLOUTS = st.lists(
    st.one_of(
        st.builds(a_rollout, st.integers(0, 3), st.one_of(st.none(), st.floats(-1e6, 1e6))),
        st.builds(a_rollout, st.integers(0, 3), st.none(), st.sampled_from(["policy", "timeout"])),
    ),
    max_size=20,
)


@given(ROLLOUTS)
def test_a_summary_counts_each_rollout_once_and_averages_rewards_only(rollouts: list[RolloutOutcome]) -> None:
    summary = summarise(rollouts)
    assert summary.scored + summary.undefined + summary.failed == summary.rollouts == len(rollouts)
    assert sum(summary.failures.values()) == summary.failed
    rewards = [one.reward for one in rollouts if one.reward is not None]
    if rewards:
        assert summary.mean == pytest.approx(statistics.fmean(rewards), abs=1e-6)
    else:
        assert summary.mean is None
    if len(rewards) > 1:
        assert summary.spread == pytest.approx(statistics.stdev(rewards), abs=1e-3)
    assert summary.stderr is None, "one seed says nothing of the spread between seeds"
    assert summary.flat_groups is None or 0 <= summary.flat_groups <= 1


def test_the_standard_error_is_the_one_of_an_evaluation() -> None:
    """2 seeds of 5 rollouts each are 2 independent numbers, not 10; a seed that comes again is no new one."""
    rewards = {3: [0.0, 0.0, 0.0, 0.0, 1.0], 4: [1.0, 1.0, 1.0, 0.0, 1.0]}
    rollouts = [
        a_rollout(place, reward, seed=seed)
        for place, (seed, some) in enumerate([*rewards.items(), *rewards.items()])
        for reward in some
    ]
    summary = summarise([*rollouts, a_rollout(9, None, seed=5), a_rollout(9, None, "policy", seed=6)])
    assert (summary.mean, summary.scored, summary.seeds) == (0.5, 20, 2)
    assert summary.stderr == pytest.approx(statistics.stdev([0.2, 0.8]) / 2**0.5)
    evaluated = Column()
    for one in rollouts:
        evaluated.add(one.reward, one.seed)
    assert summary.stderr == evaluated.standard_error


def test_groups_without_spread_are_a_share_of_those_that_could_have_one() -> None:
    rollouts = [a_rollout(0, 1.0), a_rollout(0, 1.0), a_rollout(1, 0.0), a_rollout(1, 1.0), a_rollout(2, 5.0)]
    assert summarise(rollouts).flat_groups == 0.5
