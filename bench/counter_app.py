"""A trivial ten-step environment: `synth_reference_app.py` line for line on taskapp-kit."""

import random
from typing import Literal

from taskapp_kit import Step, TaskApp, Trajectory, action

EPISODE_STEPS = 10
app = TaskApp("counter", version="1.0.0", description="Count to the target")


@app.environment("counter", splits={"train": range(100)}, max_steps=100)
class Counter:
    """Counts to a target that the seed draws from 3 to 8; ends after ten steps."""

    def reset(self, seed: int) -> dict[str, int]:
        self.target, self.count, self.steps = 3 + seed % 6, 0, 0
        return self.observe()

    def observe(self) -> dict[str, int]:
        return {"count": self.count, "target": self.target, "step": self.steps}

    @action
    def increment(self, by: Literal[1, 2, 3]) -> Step:
        """Add to the count."""
        self.count += by
        self.steps += 1
        return Step(
            observation=self.observe(),
            reward=1.0 if self.count == self.target else 0.0,
            terminated=self.steps >= EPISODE_STEPS,
        )


@app.rubric(weight=3)
def reached(trajectory: Trajectory) -> float:
    """The counter reached the target."""
    return float(trajectory.total_reward)


@app.rubric(weight=1)
def economy(trajectory: Trajectory) -> float:
    """Few steps were taken after the target."""
    last = trajectory.steps[-1].observation
    return 1.0 - float(max(0, last["count"] - last["target"])) / EPISODE_STEPS


@app.rubric(of="events")
def progress(step: Step) -> float:
    """The step moved towards the target."""
    return float(step.observation["count"] <= step.observation["target"])


@app.policy("scripted")
def scripted(observation: dict[str, int], rng: random.Random) -> dict[str, dict[str, int]]:  # noqa: ARG001
    """Always adds one."""
    return {"increment": {"by": 1}}
