# /// script
# requires-python = ">=3.11"
# dependencies = []
#
# [tool.taskapp.modal]
# app_name = "grpo-task-service-sdk"
# secret_name = "crafter-environment-sdk"
# store = "none"
# ///
"""The task app of the RL examples: reach a target by adding 1, 2 or 3.

taskapp serve examples/rl/task_app.py
taskapp deploy examples/rl/task_app.py --dry-run
"""

import random
from typing import Literal

from taskapp_kit import Step, TaskApp, Trajectory, action

app = TaskApp("rl-example", version="1.0.0", description="Reach a target by adding small numbers.")


@app.environment("adder", splits={"train": range(100), "test": range(100, 120)}, max_steps=20)
class Adder:
    """Reach the target exactly; overshooting ends the episode."""

    def __init__(self, low: int = 5, high: int = 15):
        self.low, self.high = low, high

    def reset(self, seed: int) -> str:
        self.target, self.total = random.Random(seed).randint(self.low, self.high), 0
        return f"target {self.target}, total 0"

    @action
    def add(self, amount: Literal[1, 2, 3]) -> Step:
        """Add `amount` to the total."""
        self.total += amount
        return Step(
            observation=f"target {self.target}, total {self.total}",
            reward=1.0 if self.total == self.target else 0.0,
            terminated=self.total >= self.target,
        )


@app.rubric(weight=3)
def reached(trajectory: Trajectory) -> float:
    """The target was hit exactly."""
    return 1.0 if trajectory.total_reward == 1.0 else 0.0


@app.rubric(weight=1)
def brief(trajectory: Trajectory) -> float:
    """The target was hit in few steps."""
    return 1.0 - trajectory.length / 20 if trajectory.total_reward == 1.0 else 0.0


@app.policy("gold")
def threes(observation: str, rng: random.Random) -> dict:
    """Adds 3 while it fits, then the rest."""
    target, total = (int(word.split()[1]) for word in observation.split(", "))
    return {"add": {"amount": min(3, target - total)}}
