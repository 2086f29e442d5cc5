"""A game: find a hidden number; every guess narrows the range."""

import random
from typing import Annotated

from pydantic import Field

from taskapp_kit import InvalidAction, Step, TaskApp, Trajectory, action

app = TaskApp("__app_name__-halving", version="0.1.0", description="Find a hidden number by halving.")


@app.environment("halving", splits={"train": range(1000), "test": range(1000, 1100)}, max_steps=12)
class Halving:
    """Find the hidden number. After each guess you learn the range in which it lies."""

    def reset(self, seed: int) -> str:
        self.hidden, self.low, self.high = random.Random(seed).randint(1, 100), 1, 100
        return f"between {self.low} and {self.high}"

    @action
    def guess(self, number: Annotated[int, Field(ge=1, le=100)]) -> Step:
        """Guess a number."""
        if not self.low <= number <= self.high:
            raise InvalidAction(f"{number} is not between {self.low} and {self.high}")
        if number == self.hidden:
            return Step(f"{number} it is", reward=1.0, terminated=True)
        if number < self.hidden:
            self.low = number + 1
        else:
            self.high = number - 1
        return Step(f"between {self.low} and {self.high}", reward=0.0)


@app.rubric
def quick(trajectory: Trajectory) -> float:
    """The number was found in few guesses."""
    return (1 - (trajectory.length - 1) / 12) * trajectory.total_reward


@app.policy("gold")
def halve(observation: str) -> dict[str, dict[str, int]]:
    """Guess the middle of the range."""
    low, high = (int(word) for word in observation.split() if word.isdigit())
    return {"guess": {"number": (low + high) // 2}}
