"""Find the way out of a cave."""

import random
from typing import Literal

from taskapp_kit import Step, TaskApp, action

app = TaskApp("cave-exits", description="A cave with one way out.")


@app.environment("cave", splits={"train": range(8)}, max_steps=40)
class Cave:
    """The air current shows the way. Each step costs 0.1, the exit is worth 1."""

    def reset(self, seed: int) -> str:
        rng = random.Random(seed)
        self.path = [rng.choice(["left", "right", "straight"]) for _ in range(rng.randint(12, 16))]
        return f"air from: {self.path[0]}"

    @action
    def walk(self, direction: Literal["left", "right", "straight"]) -> Step:
        """Walk into a tunnel."""
        if direction == self.path[0]:
            self.path.pop(0)
        if not self.path:
            return Step("outside", reward=0.9, terminated=True)
        return Step(f"air from: {self.path[0]}", reward=-0.1)

    @action(noop={})
    def call_for_help(self) -> Step:
        """Call the rescue team, which ends the walk."""
        return Step("rescued", reward=0.0, terminated=True)


@app.policy("gold")
def gold(observation: str) -> dict[str, dict[str, str]]:
    """Follow the air."""
    return {"walk": {"direction": observation.removeprefix("air from: ")}}
