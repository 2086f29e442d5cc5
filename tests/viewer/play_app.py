"""An app to be played by a person: buttons, forms of every kind, words, a refusal, a failure, and hostile texts."""

from __future__ import annotations

import json
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from taskapp_kit import Image, InvalidAction, Step, TaskApp, Text, Trajectory, action

sys.path.insert(0, str(Path(__file__).parent))  # worker processes import this file from elsewhere
from hostile_texts import TEXTS

app = TaskApp("arcade", description="To be played by hand.")
DOT = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8cfc0000003010100c9fe92ef"
    "0000000049454e44ae426082"
)
STARTS: list[int] = []
"""The seed of every episode that began."""
MOVES: list[str] = []
"""Every move that was made, of any episode."""


@app.environment("walk", splits={"train": range(20), "test": range(20, 30)}, max_steps=9)
class Walk:
    """Walk to the right edge, which is at 3."""

    def __init__(self, edge: Annotated[int, Field(ge=1, le=50)] = 3, image: bool = False) -> None:
        self.edge, self.image = edge, image

    def reset(self, seed: int) -> Any:
        """The left edge."""
        STARTS.append(seed)
        self.seed, self.x = seed, 0
        return self._seen()

    @action
    def go(self, way: Literal["left", "right"]) -> Step:
        """One step."""
        MOVES.append(way)
        if way == "left" and self.x == 0:
            raise InvalidAction("There is a wall on the left.")
        if self.seed == 5 and self.x == 1:
            raise RuntimeError("the floor gave way")
        self.x += 1 if way == "right" else -1
        return Step(self._seen(), 0.25, terminated=self.x == self.edge)

    @action(keys={"b": {}})
    def rest(self) -> Step:
        """Do nothing."""
        return Step(self._seen(), 0.0)

    def _seen(self) -> Any:
        words = f"You are at {self.x} of {self.edge}."
        return [Text(words), Image(DOT)] if self.image else words


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int
    y: int = 0


@app.environment("forms", splits={"train": range(4)}, max_turns=30)
class Forms:
    """Says what it was given."""

    def reset(self, seed: int) -> str:
        """Nothing yet."""
        return "Fill in a form."

    @action
    def everything(
        self,
        number: Annotated[int, Field(ge=-5, le=500)],
        share: float,
        word: str,
        sure: bool,
        colour: Colour,
        point: Point,
        several: list[Literal["a", "b", "c d"]],
        maybe: int | None = None,
        either: int | str = "x",
        few: Annotated[int, Field(ge=1, le=3)] = 2,
        notes: list[str] = [],  # noqa: B006 - shown as a default
    ) -> str:
        """Everything."""
        given = {name: value for name, value in locals().items() if name != "self"}
        return json.dumps(given, default=lambda value: getattr(value, "value", None) or value.model_dump())

    @action(text=True)
    def say(self, words: str) -> str:
        """Says it again."""
        return f"You said {words!r}."


@app.environment("zoo", splits={"train": range(len(TEXTS))})
class Zoo:
    """Says a hostile text, and refuses with it."""

    def reset(self, seed: int) -> str:
        """The text of the seed."""
        self.text = list(TEXTS.values())[seed]
        return self.text

    @action
    def poke(self, what: Literal["<script>window.hostile=1</script>", "\" onfocus='x", "\u202e\x1b[31m"]) -> str:
        """<script>window.hostile = 2</script>"""
        raise InvalidAction(self.text)


@app.rubric(environment="walk")
def arrived(trajectory: Trajectory) -> float:
    """The edge was reached."""
    return float(trajectory.status == "terminated")


@app.policy("right", environment="walk")
def right(observation: Any) -> dict[str, dict[str, str]]:
    """Goes right."""
    return {"go": {"way": "right"}}
