"""How often an answer is judged wrongly, on a table of pairs; the page on math states the figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from environments.math.comparer import Comparer
from environments.math.equality import compare, reference_of
from tests.machine import needs_sympy

PAIRS = Path(__file__).with_name("equality_pairs.jsonl")
PAGE = Path(__file__).parents[3] / "docs/environments/math.md"

pytestmark = [
    needs_sympy,
    pytest.mark.process,
]


def test_the_page_states_the_rates_of_the_table() -> None:
    comparer = Comparer()
    rows = [json.loads(line) for line in PAIRS.read_text("utf-8").splitlines()]
    try:
        verdicts = {
            (row["answer"], answer, right): compare(reference_of(row["answer"]), answer, comparer.ask).correct
            for row in rows
            for right in (True, False)
            for answer in row["right" if right else "wrong"]
        }
    finally:
        comparer.close()
    refused = [pair for pair, paid in verdicts.items() if pair[2] and not paid]
    paid = [pair for pair, earned in verdicts.items() if not pair[2] and earned]
    right = sum(pair[2] for pair in verdicts)
    print("right, refused:", *refused, sep="\n  ")
    stated = re.search(
        r"(\d+) pairs.*?(\d+) of (\d+) wrong answers are paid.*?(\d+) of (\d+) right answers are refused",
        PAGE.read_text("utf-8"), re.DOTALL,
    )  # fmt: skip
    assert len(verdicts) >= 300
    assert paid == []
    assert stated is not None
    assert [int(figure) for figure in stated.groups()] == [
        len(verdicts), len(paid), len(verdicts) - right, len(refused), right,
    ]  # fmt: skip
