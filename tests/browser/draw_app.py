"""An app to look at: pictures, rewards up and down, refusals, failures, an episode that waits for a file, and a talk between
a model and a user, which a judge reads."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np

from taskapp_kit import Image, InvalidAction, Step, TaskApp, Text, Trajectory, action

app = TaskApp("draw", version="1.0.0", description="Walk over a picture.")
WAIT_SECONDS = 60.0


@app.environment("walk", splits={"train": range(50), "test": range(50, 60)}, max_steps=30)
class Walk:
    """Walk to the right edge."""

    def __init__(self, gate: str = "", at: int = 3) -> None:
        self.gate, self.at = gate, at

    def reset(self, seed: int) -> Any:
        """The picture, with the walker at its left edge."""
        self.seed, self.x, self.y, self.n = seed, 0, 4, 0
        return self._shown("You are at the left edge.")

    @action
    def go(self, direction: Literal["left", "right", "up", "down"]) -> Step:
        """One step."""
        end = time.monotonic() + WAIT_SECONDS
        while self.gate and self.n == self.at and not Path(self.gate).exists() and time.monotonic() < end:
            time.sleep(0.01)
        self.n += 1
        if self.seed % 10 == 5 and self.n == 3:
            raise RuntimeError("the floor gave way")
        if direction == "left" and self.x == 0:
            raise InvalidAction("There is a wall on the left.")
        moved = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}[direction]
        self.x, self.y = self.x + moved[0], (self.y + moved[1]) % 8
        done = self.x == 7
        reward = {"right": 0.25, "left": -0.25}.get(direction, 0.0)
        return Step(self._shown(f"You went {direction} to {self.x}, {self.y}."), reward, terminated=done)

    @action(text=True)
    def say(self, text: str) -> Step:
        """Say something; it echoes."""
        return Step(self._shown(text), 0.0, info={text[:80]: text})

    def _shown(self, words: str) -> list[Any]:
        picture = np.full((8, 8, 3), 230, np.uint8)
        picture[:, 7] = (60, 160, 90)
        picture[self.y, self.x] = (40, 80, 200)
        return [Text(words), Image(np.kron(picture, np.ones((16, 16, 1), np.uint8)))]


@app.environment("talk", splits={"train": range(10)}, max_turns=6)
class Talk:
    """Help the caller, who has lost a parcel."""

    def reset(self, seed: int, context: Any) -> str:
        """The user's first words."""
        self.user, self.said, self.n = context.model("user"), [], 0
        return self._answered("The parcel has not come. Begin.")

    @action
    def look_up(self, number: str) -> Step:
        """Where a parcel is."""
        return Step(f"{number}: at the depot, to be delivered tomorrow between 9 and 12.", 0.5)

    @action
    def reply(self, words: str) -> Step:
        """Say something to the user."""
        self.n += 1
        return Step(self._answered(words), 0.25, terminated=self.n == 2, metrics={"replies": self.n})

    def _answered(self, words: str) -> str:
        self.said.append({"role": "user", "content": words})
        answer = self.user.ask(self.said).message["content"]
        self.said.append({"role": "assistant", "content": answer})
        return str(answer)


@app.judge(weight=1, environment="talk")
def helpful(trajectory: Trajectory) -> str:
    """Did the user get what they needed?"""
    return f"A talk of {trajectory.length} steps."


@app.rubric(weight=2, environment="walk")
def arrived(trajectory: Trajectory) -> float:
    """The right edge was reached."""
    return float(trajectory.status == "terminated")


@app.rubric(weight=1, environment="walk")
def short(trajectory: Trajectory) -> float:
    """In few steps."""
    return max(0.0, 1.0 - trajectory.length / 30)


@app.policy("straight")
def straight(observation: Any, rng: random.Random) -> dict[str, dict[str, str]]:
    """Goes right."""
    return {"go": {"direction": "right"}}


@app.policy("wander")
def wander(observation: Any, rng: random.Random) -> dict[str, dict[str, str]]:
    """Goes anywhere, mostly right."""
    return {"go": {"direction": rng.choice(["right", "right", "right", "up", "down", "left"])}}
