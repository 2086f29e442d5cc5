"""An app whose episodes wait for files, so that a test sees them under way. Worker processes import it from this file."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from taskapp_kit import Image, Step, TaskApp, Text, Trajectory, action

app = TaskApp("live", version="1.0.0", description="Plays as slowly as it is told to.")

SECRET = "sentinel-of-the-author"
WAIT_SECONDS = 20.0


class Show:
    """Shows one thing after the other.

    steps: until it ends. slow: seconds of each step. gate: a file that step number `at` (from 0) waits for. mark: a
    file that gets a line at reset and one at close. breaks: where it raises. image: observations hold a picture, each
    another one.
    """

    def __init__(
        self, steps: int = 3, slow: float = 0.0, gate: str = "", at: int = 1, mark: str = "", breaks: str = "",
        image: bool = False,
    ) -> None:  # fmt: skip
        if breaks == "config":
            raise ValueError("there is no such show")
        self.steps, self.slow, self.gate, self.at = steps, slow, gate, at
        self.mark, self.breaks, self.image = mark, breaks, image

    def reset(self, seed: int) -> Any:
        """The first one."""
        self.seed, self.n = seed, 0
        self._write("reset")
        if self.breaks == "reset":
            raise RuntimeError(SECRET)
        return self._shown()

    @action(noop={})
    def go(self) -> Step:
        """On to the next."""
        if self.gate and self.n == self.at:
            self._write("waiting")
            end = time.monotonic() + WAIT_SECONDS
            while not Path(self.gate).exists() and time.monotonic() < end:
                time.sleep(0.002)
        self.n += 1
        time.sleep(self.slow)
        if self.breaks == "step" and self.n > self.at:
            raise RuntimeError(SECRET)
        return Step(self._shown(), 1.0, terminated=self.n >= self.steps)

    def final_state(self) -> dict[str, str]:
        """Private."""
        return {"private": SECRET}

    def close(self) -> None:
        """Says so."""
        self._write("close")

    def _shown(self) -> Any:
        words = f"seed {self.seed}, number {self.n}, ü"
        if not self.image:
            return words
        return [Text(words), Image(np.full((4, 4, 3), (16 * self.seed + self.n) % 256, np.uint8))]

    def _write(self, what: str) -> None:
        if self.mark:
            descriptor = os.open(self.mark, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(descriptor, f"{what}\n".encode())
            os.close(descriptor)


app.environment("show", splits={"train": range(100)}, max_steps=200, max_turns=200)(Show)


@app.rubric
def whole(trajectory: Trajectory, config: dict[str, Any]) -> float:
    """It was shown to its end."""
    if config.get("breaks") == "rubric":
        raise RuntimeError(SECRET)
    return 1.0 if trajectory.status == "terminated" else 0.0


def a_body(seed: int | None = 0, *, safety: dict[str, Any] | None = None, **config: Any) -> dict[str, Any]:
    """The body of `POST /rollout`; `config` are the arguments of `Show`."""
    return {
        "run_id": "run-1",
        "env": {"env_name": "show", "seed": seed, "config": {name: _plain(value) for name, value in config.items()}},
        "policy": {"config": {"policy": "noop"}},
        "ops": [],
        "mode": "eval",
        **({} if safety is None else {"safety": safety}),
    }


def marks(path: Path, what: str) -> int:
    """How often the episodes that write to `path` wrote this."""
    return path.read_text().split().count(what) if path.exists() else 0


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
