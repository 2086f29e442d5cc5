"""An app in which nothing breaks: whatever a caller sends, an answer of 5xx is the server's own fault."""

from __future__ import annotations

import random
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, Field

from taskapp_kit import Image, InvalidAction, Private, Step, TaskApp, Text, Trajectory, action

app = TaskApp("sound", version="1.2.0", description="Environments of several kinds, all of them sound.")


@app.environment("counter", splits={"train": range(64), "test": range(64, 80)}, max_steps=6, reward_range=(0, 1))
class Counter:
    """Count to the target."""

    def __init__(self, low: int = 3, high: int = 6) -> None:
        if not 0 <= low <= high <= 1000:
            raise ValueError("low and high lie between 0 and 1000, low first")
        self.low, self.high = low, high

    def reset(self, seed: int) -> str:
        self.target, self.count = random.Random(seed).randint(self.low, self.high), 0
        return f"target {self.target}"

    @action(noop={"by": 1})
    def increment(self, by: Literal[1, 2, 3] = 1) -> Step:
        """Add `by`."""
        self.count += by
        return Step(
            f"count {self.count}",
            reward=float(self.count == self.target),
            terminated=self.count >= self.target,
            info={"left": self.target - self.count},
            metrics={"added": by},
        )


@app.environment("board", splits={"train": range(0, 40, 4)}, max_steps=4, max_turns=3, tags=["pictures"])
class Board:
    """A board of numbers, shown as an object and on request as a picture."""

    def reset(self, seed: int) -> dict[str, Any]:
        self.cells = np.random.default_rng(seed).integers(0, 9, (2, 2))
        return {"cells": self.cells}

    @action
    def look(self, closely: bool = False) -> list[Text | Image]:
        """See it."""
        shade = 255 if closely else 0
        return [Text("the board"), Image(np.full((2, 2, 3), shade, np.uint8))]

    @action(noop={"row": 0, "word": "a"})
    def write(self, row: Annotated[int, Field(ge=0, le=1)], word: Annotated[str, Field(max_length=8)] = "") -> Step:
        """Write a number into a row; its length is the number."""
        if not word:
            raise InvalidAction("an empty word has no length")
        self.cells[row] = len(word)
        return Step({"cells": self.cells, "word": word}, reward=None, terminated=bool(self.cells.sum() > 30))

    def final_state(self) -> dict[str, Any]:
        return {"cells": self.cells}


class Row(BaseModel):
    question: str
    answer: Private[str]


app.tasks(
    "quiz",
    row=Row,
    prompt="{question}",
    train=[Row(question="Two and two?", answer="four"), Row(question="Drei und drei — auf Deutsch?", answer="sechs")],
    test=[Row(question="One and one?", answer="two")],
)


@app.rubric(weight=3, environment="counter")
def reached(trajectory: Trajectory) -> float:
    """The target was hit."""
    return 1.0 if trajectory.total_reward == 1.0 else 0.0


@app.rubric(of="events", environment=["counter", "board"])
def refused(step: Step, trajectory: Trajectory) -> float | None:
    """Nothing was refused; the first step does not count."""
    played: Any = step
    return None if played.index == 0 else float(played.refused is None)


@app.rubric(weight=1, environment="quiz")
def named(answer_text: str, task: Row) -> float:
    """The answer is named."""
    return float(task.answer in answer_text.lower())


@app.policy("one", environment="counter")
def one(observation: Any, rng: random.Random) -> dict[str, dict[str, int]]:
    """Adds one."""
    return {"increment": {"by": 1}}
