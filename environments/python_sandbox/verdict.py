"""The outcome of each hidden test of a submission, from the results that the sandbox returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taskapp_kit.grading.code import RIGHT, WRONG, same

from .checkers import CHECKERS


def judge(cases: Sequence[tuple[list[Any], Any]], answers: Sequence[tuple[str, Any]], checker: str | None) -> list[str]:
    """Return the outcome of each case: RIGHT, WRONG, or why there was no value.

    cases: (arguments, expected result). checker: the name of the property that decides, None for equality.
    """
    words = []
    for (arguments, expected), (word, value) in zip(cases, answers, strict=True):
        if word == "value":
            holds = CHECKERS[checker](arguments, expected, value) if checker else same(expected, value)
            word = RIGHT if holds else WRONG
        words.append(word)
    return words
