from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskapp_kit.errors import ConfigError
from taskapp_kit.records.seeds import Seeds


def test_ranges_and_single_seeds_in_any_order() -> None:
    seeds = Seeds.read("20, 5,0-3,4,30-31")
    assert list(seeds) == [0, 1, 2, 3, 4, 5, 20, 30, 31]
    assert str(seeds) == "0-5,20,30-31"
    assert seeds == Seeds.read("30,31,20,0-5")
    assert len(Seeds.read(f"0-{2**63 - 2}")) == 2**63 - 1


@given(st.sets(st.integers(0, 60), min_size=1))
def test_every_seed_has_one_place(chosen: set[int]) -> None:
    seeds = Seeds.read(",".join(map(str, chosen)))
    assert list(seeds) == sorted(chosen)
    assert [seeds.at(index) for index in range(len(seeds))] == sorted(chosen)
    assert [seeds.index(seed) for seed in sorted(chosen)] == list(range(len(chosen)))
    assert all(seeds.index(seed) is None for seed in range(70) if seed not in chosen)
    assert Seeds.read(str(seeds)) == seeds


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("5-1", " 5-1"),
        ("1-5,3", "seed 3 "),
        ("", "contains ''"),
        ("a", "contains 'a'"),
        ("-3", "contains ''"),
        ("1-2-3", "contains '2-3'"),
        (str(2**63), f"'{2**63}'"),
        ("٣", "'٣'"),
    ],
)
def test_what_cannot_be_read_is_told(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Seeds.read(text)
