"""Guess a secret code of three colors."""

import random
from typing import Literal

from taskapp_kit import Step, TaskApp, action

app = TaskApp("color-codes", description="A code of three colors.")
COLORS = ("red", "green", "blue", "white")
Color = Literal["red", "green", "blue", "white"]


@app.environment("code", splits={"train": range(12)}, max_steps=8)
class Code:
    """Each guess is answered with the number of right positions."""

    def reset(self, seed: int) -> str:
        self.code = random.Random(seed).choices(COLORS, k=3)
        return "three colors of red, green, blue and white"

    @action
    def guess(self, first: Color, second: Color, third: Color) -> Step:
        """Guess the code."""
        right = sum(one == other for one, other in zip((first, second, third), self.code, strict=True))
        return Step(f"{right} right", reward=float(right == 3), terminated=right == 3, info={"right": right})
