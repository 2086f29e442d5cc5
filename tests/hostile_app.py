"""An app whose environments do what env.config says: hang, crash, lie. Worker processes import it from this file."""

import ctypes
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from taskapp_kit import Image, Step, TaskApp, Text, Trajectory, action

app = TaskApp("hostile", version="3.0")

SECRET = "sentinel-private"


class Hostile:
    """Counts its steps. `breaks` names the fault, done at step `at`; `slow` are seconds of each step."""

    def __init__(self, breaks: str = "", at: int = 2, slow: float = 0.0, image: bool = False, mark: str = ""):
        if breaks == "config":
            raise ValueError("this colour does not exist")
        self.breaks, self.at, self.slow, self.image, self.mark = breaks, at, slow, image, mark

    def reset(self, seed: int) -> str:
        """Says the seed."""
        self.n = 0
        if self.breaks == "reset":
            raise RuntimeError(SECRET)
        return f"seed {seed}"

    @action(noop={})
    def go(self, words: str = "") -> Step:
        """Go."""
        self.n += 1
        if self.mark:
            Path(self.mark).write_text(str(os.getpid()))
        time.sleep(self.slow)
        if self.n == self.at and self.breaks:
            self._fail()
        shown: Any = str(self.n)
        if self.image:
            shown = [Text(shown), Image(np.full((2, 2, 3), self.n, np.uint8))]
        elif self.breaks == "keys":
            shown = {"environment": sorted(os.environ), "pid": os.getpid()}
        elif self.breaks == "large":
            shown = "x" * 50_000_000
        elif self.breaks == "who":
            shown = {"pid": os.getpid(), "main": threading.current_thread().name, "argv": sys.argv[:1]}
        return Step(shown, 1.0)

    def final_state(self) -> dict[str, str]:
        """Private."""
        return {"db": SECRET}

    def _fail(self) -> None:
        if self.breaks == "hang":
            time.sleep(60)
        elif self.breaks == "hang in C":
            ctypes.PyDLL(None).sleep(60)  # holds the interpreter's lock
        elif self.breaks == "segfault":
            ctypes.string_at(0)
        elif self.breaks == "exit":
            os._exit(3)
        elif self.breaks == "step":
            raise RuntimeError(SECRET)


OPTIONS: dict[str, Any] = {"max_steps": 5, "splits": {"train": range(10), "test": range(10, 20)}, "version": "7"}
app.environment("shared", step_timeout_seconds=0.4, **OPTIONS)(Hostile)
app.environment("alone", step_timeout_seconds=0.4, isolation="process", **OPTIONS)(Hostile)
app.environment("untimed", isolation="process", **OPTIONS)(Hostile)


@app.rubric
def fifth(trajectory: Trajectory, config: dict[str, Any]) -> float:
    """Steps of five; reads the private end state."""
    if config.get("breaks") == "rubric":
        raise RuntimeError(SECRET)
    assert trajectory.final_state == {"db": SECRET}
    return trajectory.length / 5
