"""Which request meets which fault."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest

from taskapp_kit.errors import ConfigError
from taskapp_kit.testing import FAULTS, Faults

DIGESTS = [hashlib.sha256(str(i).encode()).digest() for i in range(4000)]


def test_shares_are_kept_and_choices_are_stable() -> None:
    faults = Faults({"429": 0.2, "hang": 0.1, "reset": 0.1}, seed=1)
    chosen = [faults.choose(digest, 0) for digest in DIGESTS]
    counts = Counter(chosen)
    assert set(counts) == {"429", "hang", "reset_early", "reset_late", None}
    for kind, share in (("429", 0.2), ("hang", 0.1), ("reset_early", 0.05), ("reset_late", 0.05), (None, 0.6)):
        assert abs(counts[kind] / len(DIGESTS) - share) < 0.03
    assert [
        Faults({"429": 0.2, "hang": 0.1, "reset": 0.1}, seed=1).choose(digest, 0) for digest in reversed(DIGESTS)
    ] == chosen[::-1]
    assert [Faults({"429": 0.2, "hang": 0.1, "reset": 0.1}, seed=2).choose(digest, 0) for digest in DIGESTS] != chosen
    assert [faults.choose(digest, 1) for digest in DIGESTS] != chosen


def test_a_sequence_comes_first() -> None:
    faults = Faults({"500": 1.0}, sequence=("429", None, "hang"), up_to_attempt=4)
    assert [faults.choose(DIGESTS[0], attempt) for attempt in range(6)] == ["429", None, "hang", "500", None, None]


def test_the_command_lines_form() -> None:
    faults = Faults.parse(" 429=0.02, reset = 0.01,", seed=3)
    assert faults.rate == {"429": 0.02, "reset": 0.01} and faults.seed == 3
    assert Faults.parse("").rate == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rset=0.1", "'rset'.*'reset'"),
        ("399=0.1", "'399'"),
        ("600=0.1", "'600'"),
        ("429", "KIND=PROBABILITY"),
        ("429=x", "KIND=PROBABILITY"),
        ("429=1.5", r"429 .*\b0 to 1\b"),
        ("429=nan", r"429 .*\b0 to 1\b"),
        ("429=0.6,500=0.6", r"\b1\.2\b"),
    ],
)
def test_what_cannot_be_used(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Faults.parse(text)


def test_a_sequence_knows_its_kinds() -> None:
    with pytest.raises(ConfigError, match="'never'"):
        Faults(sequence=("never",))
    assert all(words and not words.endswith(".") for words in FAULTS.values())
