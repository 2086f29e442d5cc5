"""What a grader returns: a score and the reason for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grade:
    """A score with its reason. A rubric may return it: the scorecard then has both.

    Attributes:
        score: 1.0 for a right answer, 0.0 for any other; a rubric's own grade may use all of its scale.
        reason: Why, in a few words. The graders of this package never repeat the expected answer.
    """

    score: float
    reason: str

    def __float__(self) -> float:
        """Return the score, so that grades can be added and weighted as numbers."""
        return float(self.score)  # an author's grade may hold an int, a bool or a number of NumPy

    def __bool__(self) -> bool:
        """Return whether the score is above 0."""
        return self.score > 0


def right(reason: str) -> Grade:
    """Return full marks."""
    return Grade(1.0, reason)


def wrong(reason: str) -> Grade:
    """Return no marks."""
    return Grade(0.0, reason)
