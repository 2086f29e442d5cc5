"""Seeds: of the task app's ranges, the same for the same job."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.jobs.server.seeds import SeedRange, cycled, draw, ranges_of
from taskapp_kit.records.seeds import size


@given(
    st.integers(0, 50),
    st.integers(1, 200),
    st.integers(1, 5),
    st.integers(0, 60),
    st.text(max_size=8),
    st.integers(0, 9),
)
def test_a_draw_is_fixed_and_even(start: int, length: int, step: int, count: int, job: str, iteration: int) -> None:
    seeds = range(start, start + length, step)
    drawn = draw(seeds, count, job, iteration)
    assert drawn == draw(seeds, count, job, iteration)
    assert len(drawn) == count
    assert set(drawn) <= set(seeds)
    times = Counter(drawn).values()
    if count <= size(seeds):
        assert all(number == 1 for number in times)
    else:
        assert max(times) <= -(-count // size(seeds))


def test_other_iterations_and_jobs_draw_other_seeds() -> None:
    seeds = range(2**63 - 1)
    assert len({tuple(draw(seeds, 4, job, number)) for job in "ab" for number in range(3)}) == 6


@pytest.mark.parametrize(
    ("told", "split", "expected"),
    [
        ({"taskset": {"seeds": {"train": [0, 64]}, "default_split": "train"}}, None, (SeedRange("", 0, 64), SeedRange("", 0, 64))),
        ({"taskset": {"seeds": {"train": [0, 64], "test": [64, 80, 2]}}}, None, (SeedRange("", 0, 64), SeedRange("", 64, 80, 2))),
        ({"taskset": {"kind": "rows", "seeds": {"train": [0, 5], "test": [0, 3]}}}, None,
         (SeedRange("train", 0, 5), SeedRange("test", 0, 3))),
        ({"taskset": {"kind": "rows", "seeds": {"train": [0, 5], "test": [0, 3]}}}, "test",
         (SeedRange("", 0, 3), SeedRange("", 0, 3))),
        ({"taskset": {"cardinality": 12}}, None, (SeedRange("", 0, 12), SeedRange("", 0, 12))),
        ({"taskset": {"seeds": {"train": [5, 5]}}}, None, (SeedRange("", 0, 1000), SeedRange("", 0, 1000))),
        ({"taskset": {"seeds": {"train": ["a", 5], "dev": [1, 2, 0]}}}, None, (SeedRange("", 0, 1000), SeedRange("", 0, 1000))),
        ([], None, (SeedRange("", 0, 1000), SeedRange("", 0, 1000))),
    ],
)  # fmt: skip
def test_ranges_are_read_from_what_a_task_app_tells(
    told: Any, split: str | None, expected: tuple[SeedRange, SeedRange]
) -> None:
    assert ranges_of(told, split) == expected


def test_a_list_begins_anew() -> None:
    assert cycled([5, 6, 7], 2, 4) == [7, 5, 6, 7]
