"""A counter that a language model plays by tool calls, five turns an episode: `counter_of_turns` and its text, for peers too.

Every seed has a text of its own, so the mock model, which samples by conversation, plays each seed differently.
"""

import random
from typing import Literal

from taskapp_kit import Step, TaskApp, Trajectory, action

TURNS = 5
app = TaskApp("counter-of-turns", version="1.0.0", description="Count to the target with a language model")


@app.environment("counter", splits={"train": range(1_000_000)}, max_steps=100)
class Counter:
    """Add 1, 2 or 3 in each turn; after the last turn the count must be the target."""

    def __init__(self, turns: int = TURNS) -> None:
        self.turns = turns

    def reset(self, seed: int) -> str:
        rng = random.Random(seed)
        self.game, self.target, self.count, self.turn = seed, rng.randint(self.turns, 3 * self.turns), 0, 0
        return self.observe()

    def observe(self) -> str:
        return f"game {self.game}: count {self.count}, target {self.target}, turn {self.turn} of {self.turns}"

    @action
    def increment(self, by: Literal[1, 2, 3]) -> Step:
        """Add to the count."""
        self.count += by
        self.turn += 1
        over = self.turn >= self.turns
        return Step(observation=self.observe(), reward=float(over and self.count == self.target), terminated=over)


@app.rubric
def reached(trajectory: Trajectory) -> float:
    """The counter ended at the target."""
    return trajectory.total_reward
