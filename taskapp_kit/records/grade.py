"""A score with its reason, as graders return it and rubrics pass it on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grade:
    """A score with its reason. If a rubric returns a grade, the scorecard shows both.

    Attributes:
        score: 1.0 for a right answer, 0.0 for a wrong one. Grades that a rubric creates may use its whole scale.
        reason: A short reason. The graders of `taskapp_kit.grading` never repeat the expected answer in it.
    """

    score: float
    reason: str

    def __float__(self) -> float:
        """Return the score, so that grades can be added and weighted as numbers."""
        return float(self.score)  # an author's grade may hold an int, a bool or a NumPy number

    def __bool__(self) -> bool:
        """Return whether the score is above 0."""
        return self.score > 0
