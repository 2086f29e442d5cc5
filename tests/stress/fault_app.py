"""The app of `make faults-proof`: steps that fail on request, an answer that a model judges, and code that runs in boxes.

Servers that load it have this directory on their PYTHONPATH.
"""

from __future__ import annotations

import threading
from typing import Any, Literal

from app import Faulty, much

from taskapp_kit import Step, TaskApp, Trajectory, action
from taskapp_kit.grading.code import passes_tests

app = TaskApp("faults", version="1.0.0", description="Rewards that are known in advance, for a server under faults.")
OPTIONS: dict[str, Any] = {"max_steps": 6, "splits": {"train": range(100_000)}}


class Swallowing(Faulty):
    """Turns its failure into a reward of 0, so that a test can see whether the proof notices."""

    def _step(self) -> Any:
        self.swallowed = True
        return "it went wrong"

    def go(self, by: Literal[1, 2, 3]) -> Step:
        step = super().go(by)
        return Step(step.observation, 0.0, terminated=True) if hasattr(self, "swallowed") else step


app.environment("steps", step_timeout_seconds=5.0, **OPTIONS)(Faulty)
app.environment("swallowing", **OPTIONS)(Swallowing)
app.rubric(environment=["steps", "swallowing"])(much)


@app.environment("judged", **OPTIONS)
class Judged:
    """Say a number, on which the judge's score depends."""

    def reset(self, seed: int) -> str:
        return f"Question {seed}."

    @action(text=True)
    def say(self, text: str) -> Step:
        """Say it."""
        return Step(terminated=True)


@app.judge(environment="judged")
def number(answer_text: str) -> str:
    """Which number is it?"""
    return answer_text


BOXES = threading.BoundedSemaphore(4)
"""Boxes in use. More would wait for a processor while their time limits run."""


@app.environment("boxed", **OPTIONS)
class Boxed:
    """Write a function `f` that returns the number of the episode."""

    def reset(self, seed: int) -> str:
        self.seed, self.share = seed, 0.0
        return f"Return {seed}."

    @action
    def submit(self, code: str, worth: Literal[1, 2, 3, 4, 5]) -> Step:
        """Submit the code. `worth` is the reward of right code, in fifths."""
        with BOXES:
            self.share = passes_tests(code, "f", [([], self.seed)]).score * worth / 5
        return Step("submitted", terminated=True)

    def final_state(self) -> float:
        return self.share


@app.rubric(environment="boxed")
def passed(trajectory: Trajectory) -> float:
    """The function returns the number."""
    return float(trajectory.final_state)
