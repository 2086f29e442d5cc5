"""A multi-turn game: find four colors in ten guesses."""

import itertools
import random
from typing import Literal

from taskapp_kit import Step, TaskApp, Trajectory, action

app = TaskApp("mastermind", version="1.0.0", description="Find a hidden row of four colors.")
COLORS = ("red", "blue", "green", "white", "black", "yellow")
Color = Literal["red", "blue", "green", "white", "black", "yellow"]


def marks(guess: tuple[str, ...], hidden: tuple[str, ...]) -> tuple[int, int]:
    """Count the colors in the right position, and those in a wrong one."""
    exact = sum(a == b for a, b in zip(guess, hidden, strict=True))
    return exact, sum(min(guess.count(color), hidden.count(color)) for color in COLORS) - exact


@app.environment("mastermind", splits={"train": range(1000), "test": range(1000, 1100)}, max_steps=10)
class Mastermind:
    """Four colors are hidden; a color may appear more than once. After each guess you learn how close it was."""

    def reset(self, seed: int) -> str:
        self.hidden = tuple(random.Random(seed).choices(COLORS, k=4))
        self.board = "Guess four colors."
        return self.board

    @action
    def guess(self, first: Color, second: Color, third: Color, fourth: Color) -> Step:
        """Guess the four colors, in order."""
        colors = (first, second, third, fourth)
        exact, near = marks(colors, self.hidden)
        self.board += f"\n{' '.join(colors)}: {exact} right, {near} misplaced"
        return Step(self.board, reward=float(exact == 4), terminated=exact == 4)


@app.rubric(weight=3)
def solved(trajectory: Trajectory) -> float:
    """The colors were found."""
    return trajectory.total_reward


@app.rubric(weight=1)
def quick(trajectory: Trajectory) -> float:
    """The colors were found in few guesses."""
    return (1 - trajectory.length / 10) * trajectory.total_reward


@app.policy("gold")
def consistent(observation: str, rng: random.Random) -> dict:
    """The first row of colors that agrees with every answer so far."""
    answers = []
    for guess, answer in (line.split(": ") for line in observation.splitlines()[1:]):
        exact, near = (int(word) for word in answer.split() if word.isdigit())
        answers.append((tuple(guess.split()), (exact, near)))
    rows = itertools.product(COLORS, repeat=4)
    row = next(row for row in rows if all(marks(guess, row) == answer for guess, answer in answers))
    return {"guess": dict(zip(("first", "second", "third", "fourth"), row, strict=True))}
