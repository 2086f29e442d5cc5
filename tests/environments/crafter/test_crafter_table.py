"""The table of the random agent: its published column, its arithmetic, its bands."""

from __future__ import annotations

import math

import pytest

from bench.crafter_table import Episode, score, score_interval, table
from environments.crafter import published
from environments.crafter.score import crafter_score

SAMPLE = [Episode(1.1, 160.0, ("wake_up", "collect_sapling"))] * 50 + [Episode(1.7, 180.0, ("wake_up",))] * 50


def test_published_counts_give_the_published_score() -> None:
    assert crafter_score(published.RATES) == pytest.approx(1.551, abs=0.0005)
    assert sum(published.RATES.values()) / 100 == pytest.approx(2.277, abs=0.0005)


def test_rows_say_mean_error_and_distance() -> None:
    made, _ = table(SAMPLE, 7)
    rows = {row[0]: list(row[1:]) for row in made.rows}
    error = math.sqrt(100 * 0.3**2 / 99) / 10
    assert rows["mean reward"][0] == f"1.400 ± {error:.3f}"
    assert rows["mean length, game steps"][0].startswith("170.0 ± ")
    assert rows["unique achievements"][0].startswith("1.500 ± ")
    assert rows["wake_up, %"][0] == "100.00 ± 0.00"
    assert rows["collect_sapling, %"] == ["50.00 ± 5.00", "50.18", "-0.0"]
    assert rows["collect_diamond, %"] == ["0.00 ± 0.00", "0.00", ""]
    assert len(rows) == 5 + 22


def test_bands_are_judged() -> None:
    made, kept = table(SAMPLE, 7)
    assert not kept  # the score of two achievements lies far below
    assert any(note.startswith("**Outside**: score") for note in made.notes)
    assert any(note.startswith("Inside: mean reward") for note in made.notes)


def test_interval_holds_the_score_and_is_the_same_each_time() -> None:
    low, high = score_interval(SAMPLE)
    assert low < score(SAMPLE) < high
    assert (low, high) == score_interval(SAMPLE)
