"""A rubric pays for few mistakes, and who does nothing makes none."""

import random
from typing import Annotated

from pydantic import Field

from taskapp_kit import Step, TaskApp, Trajectory, action

app = TaskApp("gallery")


@app.environment("hunt", splits={"train": range(1000), "test": range(1000, 2000)}, max_steps=12)
class Hunt:
    """Find the number from 0 to 999. Each guess is answered with higher or lower."""

    def reset(self, seed: int) -> str:
        rng = random.Random(seed)
        self.target = rng.randrange(1000)
        return f"It is not {(self.target + rng.randrange(1, 999)) % 1000}."

    @action
    def guess(self, number: Annotated[int, Field(ge=0, le=999)]) -> Step:
        """Guess the number."""
        right = number == self.target
        words = "right" if right else "higher" if number < self.target else "lower"
        self.wrong = not right
        return Step(words, reward=-0.1 + right, terminated=right)


@app.rubric
def careful(trajectory: Trajectory) -> float:
    """Few guesses were wrong."""
    return max(0.0, 1 + min(0.0, trajectory.total_reward))
