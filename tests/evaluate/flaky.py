"""One step; seeds that end in 3 break at reset, in 4 in the action, in 5 have no score, in 6 a long step."""

import random
import time

from taskapp_kit import RolloutSummary, Step, TaskApp, Trajectory, action

app = TaskApp("flaky", version="1.0.0")


@app.environment("flaky", splits={"train": range(60), "test": range(60, 80)}, max_steps=3)
class Flaky:
    """Press."""

    def __init__(self, pause: float = 0.0) -> None:
        self.pause = pause

    def reset(self, seed: int) -> str:
        self.seed = seed
        if seed % 10 == 3:
            raise KeyError("hidden")
        return "go"

    @action
    def press(self, hard: bool = False) -> Step:
        """Press it."""
        time.sleep(self.pause)
        if self.seed % 10 == 4:
            raise RuntimeError("hidden")
        return Step("done", reward=float(self.seed % 2), terminated=True)


@app.rubric
def odd(trajectory: Trajectory) -> float | None:
    """The seed is odd."""
    return None if trajectory.seed % 10 == 5 else trajectory.total_reward


@app.aggregate(published={"them": {"share": 0.5, "more": 1.25}})
def press(rollouts: list[RolloutSummary]) -> dict[str, float]:
    """The share of odd seeds, and the first seed."""
    return {"share": sum(one.total_reward for one in rollouts) / len(rollouts), "first": float(rollouts[0].seed)}


@app.policy("presser")
def presser(observation: str, rng: random.Random) -> dict:
    """Presses."""
    return {"press": {}}
