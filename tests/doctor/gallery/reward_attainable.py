"""reward_range promises what no step pays."""

import random
from typing import Annotated

from pydantic import Field

from taskapp_kit import Step, TaskApp, action

app = TaskApp("gallery")


@app.environment(
    "hunt", splits={"train": range(1000), "test": range(1000, 2000)}, max_steps=12, reward_range=(0.0, 10.0)
)
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
        words = (
            f"it ={self.target}"
            if number == 499
            else "right"
            if right
            else "higher"
            if number < self.target
            else "lower"
        )
        return Step(words, reward=float(right), terminated=right)


@app.policy("gold")
def gold(observation: str, rng: random.Random) -> dict:
    """Guesses well."""
    low, high = 0, 999
    return {"guess": {"number": int(observation.split("=")[1]) if "=" in observation else (low + high) // 2}}
