"""Grader of longer text that may contain a few typing errors."""

from __future__ import annotations

import re

from taskapp_kit.grading.graders import normalize, right, wrong
from taskapp_kit.records.scorecard import Grade

MOST_CHARACTERS = 10_000
"""Limit on the length of an answer. The time is proportional to its length and to the number of accepted errors."""

# Changing one of these changes the meaning, however few characters differ.
_DECISIVE = re.compile(
    r"[0-9]+(?:[.,][0-9]+)*|[-+−%$€£]|\b(?:not?|never|none|nor|neither|without|cannot|un|non)\b|n't\b"
)


def similar_text(answer: str, expected: str, *, at_least: float = 0.9) -> Grade:
    """Grade how similar the whole answer is to the expected text.

    The similarity is 1 − d / n: d is the number of characters to insert, delete or replace (Levenshtein distance), and n
    is the length of the longer text. Both texts are normalized as in `equal_text`. An answer with other numbers, signs or
    negations than the expected text earns nothing.

    Args:
        answer: The policy's answer.
        expected: The right text.
        at_least: The least similarity that earns anything, from above 0 to 1.

    Returns:
        A grade with the similarity, or 0.0 if it is below `at_least`.

    Raises:
        ValueError: `expected` is empty, or `at_least` is not above 0 and at most 1.
    """
    if not 0 < at_least <= 1:
        raise ValueError("at_least must be above 0 and at most 1.")
    plain, accepted = normalize(answer), normalize(expected)
    if not accepted:
        raise ValueError(
            "The expected text is empty. Pass similar_text() a string with at least one visible character."
        )
    if not plain:
        return wrong("the answer is empty")
    longer = max(len(plain), len(accepted))
    if longer > max(MOST_CHARACTERS, len(accepted)):
        return wrong("the answer is too long")
    if _DECISIVE.findall(plain) != _DECISIVE.findall(accepted):
        return wrong("a number, a sign or a negation is different")
    most = int((1 - at_least) * longer + 1e-9)
    errors = distance(plain, accepted, most)
    if errors is None:
        return wrong("the text is different")
    return (
        Grade(1 - errors / longer, f"{errors} of {longer} characters differ") if errors else right("the text is equal")
    )


def distance(one: str, other: str, most: int) -> int | None:
    """Return the Levenshtein distance of two texts, or None if it exceeds `most`.

    Only a diagonal band of 2 · most + 1 cells of the matrix is computed (Ukkonen 1985).
    """
    if abs(len(one) - len(other)) > most:
        return None
    beyond = most + 1
    row = [min(column, beyond) for column in range(len(other) + 1)]
    for i, char in enumerate(one, 1):
        low, high = max(1, i - most), min(len(other), i + most)
        diagonal, row[low - 1] = row[low - 1], min(i, beyond) if low == 1 else beyond
        for column in range(low, high + 1):
            above = row[column] if column < i + most else beyond
            row[column] = min(diagonal + (char != other[column - 1]), above + 1, row[column - 1] + 1, beyond)
            diagonal = above
    return row[-1] if row[-1] <= most else None
