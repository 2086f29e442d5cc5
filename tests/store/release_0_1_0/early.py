"""The app whose rollouts release 0.1.0 stored: rows, pictures, two rubrics, and an end that breaks."""

import random
from typing import Literal

from pydantic import BaseModel

from taskapp_kit import Image, Private, Step, TaskApp, Text, Trajectory, action

app = TaskApp("early", version="1.0.0")


class Pixels:
    """A picture as numpy would give it: 2 by 2, all of one brightness."""

    shape, dtype = (2, 2, 3), "uint8"

    def __init__(self, brightness: int) -> None:
        self.brightness = brightness

    def copy(self) -> "Pixels":
        return self

    def tobytes(self) -> bytes:
        return bytes([self.brightness]) * 12


@app.environment("adder", splits={"train": range(100), "test": range(100, 120)}, max_steps=12)
class Adder:
    """Reach the target exactly; seed 13 breaks."""

    def __init__(self, image: bool = False) -> None:
        self.image = image

    def reset(self, seed: int) -> object:
        self.seed, self.target, self.total = seed, random.Random(seed).randint(5, 15), 0
        return self.seen()

    def seen(self) -> object:
        words = f"target {self.target}, total {self.total}"
        return [Text(words), Image(Pixels(self.total))] if self.image else words

    @action
    def add(self, amount: Literal[1, 2, 3]) -> Step:
        """Add `amount` to the total."""
        if self.seed == 13:
            raise RuntimeError("the thirteenth")
        self.total += amount
        return Step(self.seen(), reward=float(self.total == self.target), terminated=self.total >= self.target)


@app.rubric(weight=3)
def reached(trajectory: Trajectory) -> float:
    """The target was hit exactly."""
    return float(trajectory.total_reward == 1.0)


@app.rubric(weight=1)
def brief(trajectory: Trajectory) -> float:
    """The target was hit in few steps."""
    return 1.0 - trajectory.length / 20


class Row(BaseModel):
    """A question; the answer is private."""

    question: str
    answer: Private[str]


app.tasks(
    "sums",
    row=Row,
    prompt="{question}",
    train=[Row(question="6 x 7?", answer="42"), Row(question="2 + 3?", answer="5")],
)


@app.policy("gold")
def gold(observation: object, task: Row | None) -> object:
    """Knows the answer of a row; elsewhere adds 3."""
    return task.answer if task is not None else {"add": {"amount": 3}}
