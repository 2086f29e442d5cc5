"""Images: point at the one square in a grid that has a different color."""

import random
from typing import Annotated

import numpy as np
from pydantic import Field

from taskapp_kit import Image, Step, TaskApp, Text, Trajectory, action

app = TaskApp("odd-square", version="1.0.0", description="Find the square of another color.")
SIZE = 5
Place = Annotated[int, Field(ge=1, le=SIZE)]


@app.environment("odd-square", splits={"train": range(1000), "test": range(1000, 1100)}, max_steps=3)
class OddSquare:
    """One square of a 5x5 grid has another color. Rows and columns count from 1, from the top left."""

    def __init__(self, contrast: Annotated[int, Field(ge=10, le=100)] = 60):
        self.contrast = contrast  # in env.config: the difference between the colors, out of 255

    def reset(self, seed: int) -> list:
        rng = random.Random(seed)
        color = np.array([rng.randint(100, 155) for _ in range(3)])
        self.odd = (rng.randint(1, SIZE), rng.randint(1, SIZE))
        squares = np.tile(color, (SIZE, SIZE, 1))
        squares[self.odd[0] - 1, self.odd[1] - 1] = color + self.contrast
        pixels = np.kron(squares, np.ones((48, 48, 1))).astype("uint8")
        pixels[::48] = pixels[:, ::48] = 255  # white lines between the squares
        return [Text("Which square differs?"), Image(pixels)]

    @action
    def point(self, row: Place, column: Place) -> Step:
        """Point at a square."""
        hit = (row, column) == self.odd
        return Step("that is it" if hit else "no", reward=float(hit), terminated=hit)

    def final_state(self) -> dict:
        return {"odd": list(self.odd)}


@app.rubric
def efficient(trajectory: Trajectory) -> float:
    """The square was found; each wrong attempt costs a third."""
    return max(0.0, 1 - (trajectory.length - 1) / 3) if trajectory.total_reward == 1.0 else 0.0
