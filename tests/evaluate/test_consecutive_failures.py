"""An evaluation stops when a model, a judge or a criterion fails every rollout, and goes on when that is repaired."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from taskapp_kit.config import Settings
from taskapp_kit.declare.discovery import find_app
from taskapp_kit.errors import EvaluationStopped
from taskapp_kit.evaluate.limits import (
    GONE_CODES,
    MAX_CONSECUTIVE_FAILURES,
    SHARED_CODES,
    ModelFailures,
)
from taskapp_kit.evaluate.plan import EvalPlan
from taskapp_kit.evaluate.runners import LocalRunner
from taskapp_kit.records.protocols import RolloutRow
from taskapp_kit.records.seeds import Seeds
from taskapp_kit.testing import Faults, MockModel

ADDER = str(Path(__file__).parents[2] / "examples" / "adder.py")
GOOD = RolloutRow("terminated", "r", reward=1.0)


def broken(code: str) -> RolloutRow:
    return RolloutRow("failed", "r", boundary="policy", code=code, message="It broke.")


def stops_after(*results: tuple[str, RolloutRow], limit: int = 3) -> int | None:
    """How many rollouts ended before the evaluation stopped; None when it did not."""
    failures = ModelFailures(limit)
    for number, (model, result) in enumerate(results, start=1):
        try:
            failures.see(model, result)
        except EvaluationStopped:
            return number
    return None


@pytest.mark.parametrize("code", sorted(GONE_CODES))
def test_one_and_the_same_code_stops(code: str) -> None:
    assert stops_after(*[("m", broken(code))] * 5) == 3


def test_what_does_not_stop() -> None:
    gone, limited = broken("model_unreachable"), broken("model_rate_limited")
    assert stops_after(*[("m", gone), ("m", gone), ("m", GOOD)] * 3) is None
    assert stops_after(("m", gone), ("m", limited), ("m", gone), ("m", limited)) is None
    assert stops_after(*[("m", broken("environment_hung")), ("m", broken("environment_raised"))] * 5) is None
    assert stops_after(("a", gone), ("b", gone), ("a", gone), ("b", gone)) is None
    assert stops_after(*[("m", gone)] * 20, limit=0) is None
    unjudged = broken("judge_failed")
    assert stops_after(*[("a", unjudged), ("a", unjudged), ("b", GOOD)] * 3) is None


def test_another_failure_and_another_models_success_hide_nothing() -> None:
    gone = broken("model_refused")
    assert stops_after(("a", gone), ("b", GOOD), ("a", broken("deadline")), ("a", gone), ("b", GOOD), ("a", gone)) == 6


@pytest.mark.parametrize("code", sorted(SHARED_CODES))
def test_a_cause_of_all_policies_is_counted_over_them_and_beside_other_causes(code: str) -> None:
    assert stops_after(("a", broken(code)), ("b", broken(code)), ("c", broken(code))) == 3
    assert stops_after(*[("a", broken(code)), ("a", broken("model_unreachable"))] * 3) == 5


@pytest.mark.server
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_it_stops_and_completes_when_the_model_is_back(evaluations: Any, tmp_path: Path, workers: int) -> None:
    def player() -> LocalRunner:
        return LocalRunner(find_app(ADDER), Settings(), workers=workers)

    with MockModel(faults=Faults({"401": 1.0})) as model:
        asked = EvalPlan(Seeds.read("0-49"), [{"model": "m", "inference_url": model.url}], ops=2)
        with pytest.raises(EvaluationStopped) as caught:
            evaluations.run(tmp_path, asked, player(), concurrency=1)
        assert "model_refused" in caught.value.message
        assert len(model.requests) == MAX_CONSECUTIVE_FAILURES
        lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
        assert Counter(line["code"] for line in lines) == {"model_refused": MAX_CONSECUTIVE_FAILURES}
        assert not (tmp_path / "summary.json").exists()
        model.faults = Faults()
        summary = evaluations.run(tmp_path, asked, player(), retry=True)
    assert (summary["rollouts"]["done"], summary["rollouts"]["failed"]) == (50, 0)


@pytest.mark.server
def test_where_nothing_is_left_there_is_a_summary(evaluations: Any, tmp_path: Path) -> None:
    with MockModel(faults=Faults({"401": 1.0})) as model:
        asked = EvalPlan(Seeds.read("0-7"), [{"model": "m", "inference_url": model.url}])
        summary = evaluations.run(tmp_path, asked, LocalRunner(find_app(ADDER), Settings()))
    assert summary["rollouts"]["failed"] == 8
