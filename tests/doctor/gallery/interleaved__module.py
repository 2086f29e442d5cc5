"""The guesses lie in a list that all episodes share."""

import random
from typing import Annotated

from pydantic import Field

from taskapp_kit import Step, TaskApp, action

app = TaskApp("gallery")
TRIED: list[int] = []


@app.environment("hunt", splits={"train": range(1000), "test": range(1000, 2000)}, max_steps=12)
class Hunt:
    """Find the number from 0 to 999. Each guess is answered with higher or lower."""

    def reset(self, seed: int) -> str:
        TRIED.clear()
        rng = random.Random(seed)
        self.target = rng.randrange(1000)
        return f"It is not {(self.target + rng.randrange(1, 999)) % 1000}."

    @action
    def guess(self, number: Annotated[int, Field(ge=0, le=999)]) -> Step:
        """Guess the number."""
        right = number == self.target
        words = "right" if right else "higher" if number < self.target else "lower"
        TRIED.append(number)
        return Step(f"{words}, {len(TRIED)} guesses", reward=float(right), terminated=right)
