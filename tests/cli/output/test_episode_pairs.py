"""Episodes before and after training, side by side."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from taskapp_kit.cli.output.episode_pairs import MOST_TURNS, EpisodePair, print_pairs
from taskapp_kit.rollout.details import RequestedCall, RolloutDetails, details_of
from tests.rollout.test_details import stored_show


def printed(*pairs: EpisodePair, width: int = 80) -> str:
    text = io.StringIO()
    print_pairs(pairs, Console(file=text, width=width, highlight=False, markup=False, emoji=False))
    return text.getvalue()


@pytest.fixture(scope="module")
def details() -> RolloutDetails:
    return details_of(stored_show(steps=2))


def said(details: RolloutDetails, *words: str) -> RolloutDetails:
    turns = tuple(replace(details.turns[0], words=text, calls=(RequestedCall("go", {"by": 2}),)) for text in words)
    return replace(details, turns=turns)


def test_both_courses_stand_side_by_side_below_what_both_saw(details: RolloutDetails) -> None:
    text = printed(EpisodePair(7, said(details, "left"), said(details, "right", ""), (0.0, 0.5)))
    lines = text.splitlines()
    assert lines[1] == "seed 7: reward 0 before, 0.5 after"
    assert "seed 0, number 0" in lines[2]
    assert lines[3].split() == ["before", "after"]
    assert lines[4].split() == [">", "left", ">", "right"]
    assert "> go by=2" in text, "what it called where it wrote nothing"


def test_what_is_long_hostile_or_missing_keeps_the_layout(details: RolloutDetails) -> None:
    hostile = "\x1b[2J\u202e[red]" + "long " * 500
    before = said(details, *[hostile] * (MOST_TURNS + 3))
    text = printed(EpisodePair(1, before, None, (None, None)), EpisodePair(2, None, None, (None, 1.0)), width=60)
    assert not set(text) & set("\x1b\u202e") and "[red]" in text
    assert max(map(len, text.splitlines())) <= 60
    assert "… 3 more turns" in text and "(failed or not stored)" in text
    assert "seed 2: reward - before, 1 after" in text
