from __future__ import annotations

import math
import random
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.evaluate.summary import Column, EvalStatistics, SummaryOptions
from taskapp_kit.records.protocols import RolloutRow


def scored(seed: int, reward: float | None, **more: object) -> RolloutRow:
    numbers = {"total_reward": 1.0, "length": 4, "digest": f"d{seed}", "stop_reason": "environment", **more}
    return RolloutRow("terminated", f"r{seed}", seed=seed, reward=reward, **numbers)  # type: ignore[arg-type]


def column(values: list[tuple[int, float]]) -> Column:
    made = Column()
    for seed, value in values:
        made.add(value, seed)
    return made


def test_mean_and_standard_error_of_one_sample_a_seed() -> None:
    values = [0.25, 1.0, 0.5, 0.0]
    made = column(list(enumerate(values)))
    assert made.mean == fmean(values)
    assert made.standard_error == pytest.approx(stdev(values) / math.sqrt(4))


def test_samples_of_a_seed_are_not_taken_for_independent() -> None:
    once = column([(0, 0.0), (1, 1.0), (2, 0.0), (3, 1.0)])
    thrice = column([(seed, value) for seed, value in enumerate((0.0, 1.0, 0.0, 1.0)) for _ in range(3)])
    assert thrice.mean == once.mean
    assert thrice.standard_error == pytest.approx(once.standard_error)


def test_too_few_have_no_error_and_none_no_mean() -> None:
    assert Column().to_json() == {"mean": None, "standard_error": None, "n": 0}
    assert column([(0, 1.0), (0, 2.0)]).to_json() == {"mean": 1.5, "standard_error": None, "n": 2}


def test_a_failure_is_counted_and_averaged_nowhere() -> None:
    tally = EvalStatistics()
    tally.add(scored(0, 1.0, criteria={"a": 1.0, "b": None}, usage={"total_tokens": 5.0}))
    tally.add(RolloutRow("failed", "x", seed=1, boundary="policy", code="model_unreachable", seconds=2.0))
    tally.add(RolloutRow("failed", "y", seed=2, boundary=None, code="status_500", seconds=2.0))
    tally.add(scored(3, None, criteria={"a": 0.0, "b": None}))
    told = tally.to_json(5)
    assert told["rollouts"] == {
        "asked": 5, "done": 4, "terminated": 2, "truncated": 0, "failed": 2, "scored": 1, "undefined": 1,
        "without_valid_action": 0,
    }  # fmt: skip
    assert told["reward"] == {"mean": 1.0, "standard_error": None, "n": 1}
    assert told["length"]["n"] == 2
    assert told["criteria"]["a"]["mean"] == 0.5
    assert told["criteria"]["b"] == {"mean": None, "standard_error": None, "n": 0}
    assert told["failures"] == {"policy": {"model_unreachable": 1}, "untold": {"status_500": 1}}
    assert told["usage"] == {"total_tokens": 5.0}
    assert told["timing"]["rollout_seconds"] == {"mean": 2.0, "total": 4.0}


def test_sums_are_exact() -> None:
    values = [random.Random(seed).uniform(-1, 1) * 10.0 ** (seed % 30) for seed in range(200)]
    assert column(list(enumerate(values))).mean == column(list(enumerate(reversed(values)))).mean


def test_the_digest_tells_one_changed_rollout() -> None:
    def digest(last: str) -> str:
        tally = EvalStatistics()
        for seed in range(3):
            tally.add(scored(seed, 1.0, digest=last if seed == 2 else "d"))
        return str(tally.to_json(3)["digest"])

    assert digest("d") == digest("d") != digest("e")


def test_the_observation_digest_is_apart_and_null_when_a_rollout_has_none() -> None:
    def summary(*seen: str | None) -> tuple[str, str | None]:
        tally = EvalStatistics()
        for seed, one in enumerate(seen):
            tally.add(scored(seed, 1.0, observation_digest=one))
        told = tally.to_json(len(seen))
        return told["digest"], told["observation_digest"]

    one, other, partly = summary("a", "b"), summary("a", "c"), summary("a", None)
    assert one[0] == other[0] == partly[0]
    assert one[1] != other[1]
    assert partly[1] is None


def test_the_observation_digest_differs_wherever_the_digest_does() -> None:
    def summary(*results: RolloutRow) -> str:
        tally = EvalStatistics()
        for result in results:
            tally.add(result)
        told: str = tally.to_json(len(results))["observation_digest"]
        return told

    def failed(boundary: str) -> RolloutRow:
        return RolloutRow("failed", "r1", seed=1, boundary=boundary, code="broken")

    shown = scored(0, 1.0, observation_digest="a")
    assert summary(shown) == summary(shown)
    assert len({summary(shown, failed("environment")), summary(shown, failed("policy")), summary(shown)}) == 3
    assert summary(shown) != summary(scored(0, 0.5, observation_digest="a")), "another reward"


RESULTS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(["terminated", "truncated", "failed"]), st.none() | st.floats(-1, 1)),
    max_size=30,
)


@given(RESULTS)
def test_a_breakdown_adds_up_to_the_whole(drawn: list[tuple[int, str, float | None]]) -> None:
    tally = EvalStatistics(SummaryOptions(by=("difficulty", "seed", "tag"), interval="t"))
    for seed, status, reward in drawn:
        row = {"difficulty": ("easy", "hard", 3)[seed % 3], "tags": ["odd"] if seed % 2 else ["even", "all"]}
        reward = None if status == "failed" else reward
        tally.add(RolloutRow(status, "r", seed=seed, reward=reward, row=row))
    told = tally.to_json(len(drawn))
    for by in ("difficulty", "seed"):
        groups = told["by"][by]
        for name, count in told["rollouts"].items():
            if name not in ("asked", "without_valid_action"):
                assert sum(group["rollouts"][name] for group in groups) == count
        total = sum(group["reward"]["mean"] * group["reward"]["n"] for group in groups if group["reward"]["n"])
        assert total == pytest.approx((told["reward"]["mean"] or 0.0) * told["reward"]["n"], abs=1e-9)
        assert sum(group["pass"]["passed"] for group in groups) == told["pass"]["passed"]
    tags = {group["value"]: group["rollouts"]["done"] for group in told["by"]["tag"]}
    assert tags.get("even", 0) == tags.get("all", 0)
    assert tags.get("even", 0) + tags.get("odd", 0) == len(drawn)


def test_null_and_failed_are_no_fails() -> None:
    tally = EvalStatistics()
    tally.add(scored(0, 1.0))
    tally.add(scored(0, None))
    tally.add(RolloutRow("failed", "x", seed=0, boundary="policy", code="c"))
    told = tally.to_json(3)
    assert (told["pass"]["samples"], told["pass"]["passed"]) == (1, 1)
    assert told["pass"]["k"]["1"]["pass_at_k"]["mean"] == 1.0
    assert (told["rollouts"]["undefined"], told["rollouts"]["failed"]) == (1, 1)


def test_what_a_failed_rollout_used_is_counted() -> None:
    tally = EvalStatistics()
    tally.add(scored(0, 1.0, usage={"prompt_tokens": 5.0}, policy_cost=0.25))
    failed = RolloutRow(
        "failed", "x", seed=1, boundary="policy", code="c", usage={"prompt_tokens": 3.0}, policy_cost=0.5
    )
    tally.add(failed)
    tally.add(scored(2, 1.0, usage={"prompt_tokens": 1.0}, other_cost=1.0))
    told = tally.to_json(3)
    assert told["usage"] == {"prompt_tokens": 9.0}
    assert told["cost"] == {"policy": 0.75, "other": 1.0, "total": 1.75, "of_failed": 0.5, "without_price": 1}
    assert tally.to_json(3)["interval"]["method"] == "t"
    assert EvalStatistics().to_json(0)["cost"]["total"] is None
