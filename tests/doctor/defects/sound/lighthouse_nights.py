"""Light the lamp of a lighthouse when the fog comes."""

import random

from taskapp_kit import Step, TaskApp, action

app = TaskApp("lighthouse-nights", description="One night in a lighthouse.")
WINDS = ("north", "east", "south", "west", "light", "strong", "cold", "warm", "steady", "no")


@app.environment("night", splits={"train": range(10)}, max_steps=30)
class Night:
    """The night ends well if the lamp is lit in fog."""

    def reset(self, seed: int) -> str:
        self.hour, self.fog_at = 0, 2 + random.Random(1).sample(range(10), 10)[seed % 10]
        return f"{WINDS[seed % len(WINDS)]} wind, hour 0: clear"

    def sky(self) -> str:
        return "fog" if self.hour >= self.fog_at else "clear"

    @action(noop={})
    def wait(self) -> Step:
        """Wait for an hour."""
        self.hour += 1
        return Step(f"hour {self.hour}: {self.sky()}", reward=0.0)

    @action
    def light_lamp(self) -> Step:
        """Light the lamp, which ends the night."""
        in_time = self.sky() == "fog"
        return Step("the ships are safe" if in_time else "the oil is wasted", reward=float(in_time), terminated=True)


@app.policy("gold")
def gold(observation: str) -> dict[str, dict[str, str]]:
    """Wait for fog, then light the lamp."""
    return {"light_lamp" if observation.endswith("fog") else "wait": {}}
