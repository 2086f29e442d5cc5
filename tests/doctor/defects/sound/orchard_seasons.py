"""Care for an orchard until the harvest is large enough."""

import random
from typing import Any, Literal

from taskapp_kit import Step, TaskApp, Trajectory, action

app = TaskApp("orchard-seasons", description="A season in an orchard.")


@app.environment("orchard", splits={"train": range(8)}, max_steps=6)
class Orchard:
    """Water the dry tree on each day. The season ends with a harvest of 10 kg."""

    def reset(self, seed: int) -> str:
        self.rng, self.harvest = random.Random(seed), 0.0
        return self.day()

    def day(self) -> str:
        self.dry = self.rng.choice(["apple", "pear", "plum"])
        return f"the {self.dry} tree is dry, harvest {self.harvest:g} kg"

    @action
    def water(self, tree: Literal["apple", "pear", "plum"]) -> Step:
        """Water a tree."""
        return self.grow(2.0 if tree == self.dry else 0.0)

    @action(noop={})
    def rest(self) -> Step:
        """Do nothing for a day."""
        return self.grow(0.0)

    def grow(self, amount: float) -> Step:
        self.harvest += amount
        return Step(self.day(), terminated=self.harvest >= 10)

    def final_state(self) -> dict[str, Any]:
        return {"harvest": self.harvest}


@app.rubric
def harvest(trajectory: Trajectory) -> float:
    """The harvest is large."""
    return min(1.0, float(trajectory.final_state["harvest"]) / 10)


@app.policy("gold")
def gold(observation: str) -> dict[str, dict[str, str]]:
    """Water the dry tree."""
    return {"water": {"tree": observation.split()[1]}}
