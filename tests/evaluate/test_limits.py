from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.errors import EvaluationLimitReached
from taskapp_kit.evaluate.limits import EvalLimits
from taskapp_kit.evaluate.plan import EvalPlan
from taskapp_kit.evaluate.progress import Progress
from taskapp_kit.evaluate.run import NO_LIMITS, AutoConcurrency
from taskapp_kit.records.protocols import RolloutRow
from taskapp_kit.records.seeds import Seeds

from .test_run import Breaking, lines


class Paid(Breaking):
    """Each rollout has 10 tokens and costs 1 dollar, half of it for judges; odd seeds fail, having cost as much."""

    def __init__(self, *, price: float | None = 0.5) -> None:
        super().__init__()
        self.price = price

    async def play(self, request: Any, *, key: str, progress: Progress) -> RolloutRow:
        result = await super().play(request, key=key, progress=progress)
        if result.seed % 2:
            result = RolloutRow("failed", "r", seed=result.seed, boundary="policy", code="c")
        result.usage = {"prompt_tokens": 8.0, "completion_tokens": 2.0}
        result.policy_cost, result.other_cost = self.price, 0.5
        progress.add(1, result.usage, result.policy_cost)
        progress.add(0, {}, 0.5)
        return result


def plan(seeds: str = "0-39") -> EvalPlan:
    return EvalPlan(Seeds.read(seeds), [{"model": "m"}])


@pytest.mark.parametrize(
    ("limits", "said", "least", "most"),
    [
        (EvalLimits(max_failures=3), "--max-failures", 3, 14),
        (EvalLimits(max_cost=7.5), "--max-cost", 8, 11),
        (EvalLimits(max_total_tokens=100), "--max-total-tokens", 10, 13),
    ],
)
def test_a_limit_starts_no_more_and_lets_those_under_way_end(
    evaluations: Any, tmp_path: Path, limits: EvalLimits, said: str, least: int, most: int
) -> None:
    with pytest.raises(EvaluationLimitReached, match=said):
        evaluations.run(tmp_path, plan(), Paid(), limits=limits)
    assert least <= len(lines(tmp_path)) <= most
    assert not (tmp_path / "summary.json").exists()


def test_cost_and_tokens_are_those_of_every_run_and_failures_of_this_one(evaluations: Any, tmp_path: Path) -> None:
    with pytest.raises(EvaluationLimitReached):
        evaluations.run(tmp_path, plan(), Paid(), limits=EvalLimits(max_cost=5.0))
    played = len(lines(tmp_path))
    for spent in (EvalLimits(max_cost=5.0), EvalLimits(max_total_tokens=10 * played)):
        with pytest.raises(EvaluationLimitReached):
            evaluations.run(tmp_path, plan(), Paid(), limits=spent)
    assert len(lines(tmp_path)) == played
    with pytest.raises(EvaluationLimitReached):
        evaluations.run(tmp_path, plan(), Paid(), limits=EvalLimits(max_failures=2))
    assert len(lines(tmp_path)) > played
    summary = evaluations.run(tmp_path, plan(), Paid(), limits=NO_LIMITS)
    assert summary["cost"] == {"policy": 20.0, "other": 20.0, "total": 40.0, "of_failed": 20.0, "without_price": 0}
    assert summary["usage"] == {"completion_tokens": 80.0, "prompt_tokens": 320.0}


def test_a_limit_that_the_last_rollout_reaches_stops_nothing(evaluations: Any, tmp_path: Path) -> None:
    summary = evaluations.run(tmp_path, plan("0-3"), Paid(), limits=EvalLimits(max_cost=4.0), concurrency=1)
    assert summary["rollouts"]["done"] == 4


def test_a_cost_limit_without_a_price_stops_at_once(evaluations: Any, tmp_path: Path) -> None:
    with pytest.raises(EvaluationLimitReached, match="price of m is unknown"):
        evaluations.run(tmp_path, plan(), Paid(price=None), limits=EvalLimits(max_cost=100.0))
    assert len(lines(tmp_path)) <= 5


class Steady(Breaking):
    """Says that each rollout takes a second."""

    async def play(self, request: Any, *, key: str, progress: Progress) -> RolloutRow:
        result = await super().play(request, key=key, progress=progress)
        result.seconds = 1.0
        return result


def test_what_adapts_plays_them_all(evaluations: Any, tmp_path: Path) -> None:
    player = Steady()
    summary = evaluations.run(tmp_path, plan("0-399"), player, concurrency=AutoConcurrency())
    assert summary["rollouts"]["done"] == 400
    assert player.most > 8
