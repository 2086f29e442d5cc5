"""An interval stays within what an app's declarations allow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.records.score_ranges import ScoreRanges
from taskapp_kit.records.statistics import (
    FEWEST_FOR_INTERVAL,
    UNBOUNDED,
    Interval,
    IntervalMethod,
    Range,
    mean_interval,
    paired_difference,
)

BOUNDS = st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)).map(lambda ends: (min(ends), max(ends)))
METHODS: st.SearchStrategy[IntervalMethod] = st.sampled_from(["bootstrap", "t"])


@st.composite
def samples(draw: st.DrawFn) -> tuple[Range, list[float], list[float], list[int]]:
    """A range, the values of two policies in it, and the seed of each pair."""
    bounds = draw(BOUNDS)
    pairs = draw(st.lists(st.tuples(st.floats(*bounds), st.floats(*bounds), st.integers(0, 40)), max_size=60))
    return bounds, [one for one, _, _ in pairs], [two for _, two, _ in pairs], [seed for *_, seed in pairs]


def stays_within(interval: Interval, bounds: Range, seeds: int) -> bool:
    if seeds < FEWEST_FOR_INTERVAL:
        return interval.low is None and interval.high is None
    assert interval.low is not None and interval.mean is not None and interval.high is not None
    rounding = 1e-9 * max(1.0, *map(abs, bounds))
    ordered = (bounds[0], interval.low, interval.mean, interval.high, bounds[1])
    return all(lower <= upper + rounding for lower, upper in pairwise(ordered))


@given(samples(), METHODS, st.sampled_from([0.5, 0.95, 0.999]))
def test_no_interval_leaves_the_range_of_its_values(
    sample: tuple[Range, list[float], list[float], list[int]], method: IntervalMethod, confidence: float
) -> None:
    bounds, one, two, seeds = sample
    width = bounds[1] - bounds[0]
    mean = mean_interval(one, seeds, method=method, confidence=confidence, resamples=50, bounds=bounds)
    differences = (-width, width)
    pair = paired_difference(one, two, seeds, method=method, confidence=confidence, resamples=50, bounds=differences)
    assert stays_within(mean, bounds, len(set(seeds)))
    assert stays_within(pair.interval, differences, len(set(seeds)))


def test_a_value_outside_the_declared_range_leaves_the_interval_as_it_is() -> None:
    values = [0.0, 1.0, 3.0]
    assert mean_interval(values, range(3), bounds=(0.0, 1.0)) == mean_interval(values, range(3))


def task_info(**changes: Any) -> dict[str, Any]:
    """A body of `/task_info` with two criteria that count and one of weight 0."""
    criteria = [
        {"id": name, "weight": weight, "scale": [1.0, 5.0]} for name, weight in (("a", 1.0), ("b", 2.0), ("c", 0.0))
    ]
    return {
        "reward": {"env": 0.0, "event": 0.0, "outcome": 1.0, "step_range": None, **changes.pop("reward", {})},
        "rubric": {"outcome": {"criteria": criteria}},
        "limits": {"max_steps": 10},
        "config_schema": {},
        **changes,
    }


CONFIGURABLE = {"properties": {"length": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("changes", "aggregation", "expected"),
    [
        ({}, "weighted_sum", (0.0, 1.0)),
        ({"reward": {"outcome": 0.5}}, "weighted_sum", (0.0, 0.5)),
        ({}, "sum", (0.0, 2.0)),
        ({}, None, (0.0, 2.0)),
        ({"reward": {"event": 0.1}}, "weighted_sum", UNBOUNDED),
        ({"reward": {"env": 1.0}}, "weighted_sum", UNBOUNDED),
        ({"reward": {"env": 2.0, "step_range": [-1.0, 3.0]}}, "weighted_sum", (-20.0, 61.0)),
        ({"reward": {"env": 1.0, "step_range": [0.5, 3.0]}, "config_schema": CONFIGURABLE}, "weighted_sum", (0.0, math.inf)),
        ({"reward": {"env": 1.0, "step_range": [0, 1]}, "limits": {"max_steps": None}}, "weighted_sum", (0.0, math.inf)),
        ({"reward": {"outcome": "1"}}, "weighted_sum", UNBOUNDED),
        ({"rubric": None}, "weighted_sum", UNBOUNDED),
    ],
)  # fmt: skip
def test_the_range_of_a_reward_follows_from_its_formula(
    changes: Mapping[str, Any], aggregation: str | None, expected: Range
) -> None:
    ranges = ScoreRanges.of_task_info(task_info(**changes), aggregation)
    assert ranges.reward == expected
    assert ScoreRanges.from_json(orjson.loads(orjson.dumps(ranges.to_json()))) == ranges


def test_the_range_of_a_criterion_is_its_scale() -> None:
    assert ScoreRanges.of_task_info(task_info(), "weighted_sum").criteria == dict.fromkeys("abc", (1.0, 5.0))


@pytest.mark.parametrize("body", [None, [], {"reward": [1, 0], "criteria": {}}, {"reward": [0, 1], "criteria": []}, {"reward": "no"}])  # fmt: skip
def test_ranges_of_a_damaged_configuration_are_unknown(body: Any) -> None:
    assert ScoreRanges.from_json(body) == ScoreRanges()
