"""Seeds, splits and derived randomness."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.records.seeds import SEED_LIMIT, derived_rng, overlap, size

RANGES = st.builds(range, st.integers(0, 60), st.integers(0, 120), st.sampled_from([1, 2, 3, 5, 6, 7, -1, -2, -4]))


@given(RANGES, RANGES)
def test_overlap_finds_the_lowest_shared_seed(one: range, two: range) -> None:
    shared = set(one) & set(two)
    assert overlap({"a": one, "b": two}) == (("a", "b", min(shared)) if shared else None)


def test_overlap_of_long_ranges_takes_no_time() -> None:
    assert overlap({"a": range(0, SEED_LIMIT, 2), "b": range(1, SEED_LIMIT, 2)}) is None
    assert overlap({"a": range(0, SEED_LIMIT, 6), "b": range(3, SEED_LIMIT, 9)}) == ("a", "b", 12)
    assert overlap({"a": range(3), "b": range(5, 9), "c": range(8, 10)}) == ("b", "c", 8)
    assert overlap({}) is None


def test_size_beyond_what_len_can_say() -> None:
    assert size(range(SEED_LIMIT)) == SEED_LIMIT


def test_a_stream_depends_on_every_part_and_its_type() -> None:
    parts: list[tuple[str | int, ...]] = [("a", 1), ("a", "1"), ("a1",), ("a", 1, 0), ("a\x1f1",), ("b", 1), (), ("",)]
    assert len({derived_rng(*item).random() for item in parts}) == len(parts)
    assert derived_rng("a", 1).random() == derived_rng("a", 1).random()


@pytest.mark.process
@pytest.mark.parametrize("seed", ["0", "1"])
def test_a_stream_is_the_same_in_every_process(seed: str) -> None:
    code = (
        "from taskapp_kit.records.seeds import derived_rng; print(derived_rng('policy', 'e', 'train', 7, 0).random())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
    )
    assert float(ran.stdout) == derived_rng("policy", "e", "train", 7, 0).random()
    assert random.Random(7).random() != float(ran.stdout)
