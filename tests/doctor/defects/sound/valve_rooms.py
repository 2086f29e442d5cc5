"""Open valves until a boiler has the right pressure."""

import random
from typing import Annotated

from pydantic import Field

from taskapp_kit import Blend, InvalidAction, PlayedStep, Step, TaskApp, action

app = TaskApp("valve-rooms", description="A boiler with four valves.", reward=Blend(env=1.0, event=1.0))


@app.environment("boiler", splits={"train": range(10)}, max_steps=12)
class Boiler:
    """Valve n adds n bar. A valve opens once. Above the target, the alarm sounds and the boiler shuts down."""

    def reset(self, seed: int) -> str:
        self.target, self.pressure, self.opened = random.Random(seed).randint(3, 10), 0, set[int]()
        return f"target {self.target} bar, now 0 bar, valves 1 2 3 4"

    @action
    def open_valve(self, number: Annotated[int, Field(ge=1, le=4)]) -> Step:
        """Open a valve."""
        if number in self.opened:
            raise InvalidAction(f"Valve {number} is open already.")
        self.opened.add(number)
        self.pressure += number
        left = " ".join(str(valve) for valve in range(1, 5) if valve not in self.opened)
        return Step(
            f"target {self.target} bar, now {self.pressure} bar, valves {left}",
            reward=float(self.pressure == self.target),
            terminated=self.pressure >= self.target,
            info={"alarm": self.pressure > self.target},
        )


@app.rubric(of="events", weight=0.2)
def calm(step: PlayedStep) -> float:
    """A valve was opened without an alarm."""
    return float(not step.refused and not step.info["alarm"])


@app.policy("gold")
def gold(observation: str) -> dict[str, dict[str, int]]:
    """Open the largest valve that fits."""
    words = observation.replace(",", "").split()
    missing, valves = int(words[1]) - int(words[4]), [int(word) for word in words[7:]]
    return {"open_valve": {"number": max(valve for valve in valves if valve <= missing)}}
