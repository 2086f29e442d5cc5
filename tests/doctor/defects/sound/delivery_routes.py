"""Drive a van to a customer and save fuel."""

from typing import Any, Literal

from taskapp_kit import Step, TaskApp, Trajectory, action

app = TaskApp("delivery-routes", description="Deliveries on a straight road.")


@app.environment("route", splits={"train": range(10)}, max_steps=12)
class Route:
    """Each kilometer costs a liter of the twelve in the tank. Park at the customer."""

    def reset(self, seed: int) -> str:
        self.position, self.fuel, self.customer = 0, 12, (5, -6, 7, -8, 9, -5, 6, -7, 8, -9)[seed % 10]
        return self.view()

    def view(self) -> str:
        return f"customer at km {self.customer}, you are at km {self.position}, fuel {self.fuel}"

    @action
    def drive(self, direction: Literal["west", "east"]) -> str:
        """Drive a kilometer; east is positive."""
        self.position += 1 if direction == "east" else -1
        self.fuel -= 1
        return self.view()

    @action(noop={})
    def park(self) -> Step:
        """Park, which ends the delivery."""
        return Step(self.view(), terminated=True)

    def final_state(self) -> dict[str, Any]:
        return {"arrived": self.position == self.customer, "fuel": self.fuel}


@app.rubric
def arrived(trajectory: Trajectory) -> float:
    """The van is at the customer."""
    return float(trajectory.final_state["arrived"])


@app.rubric
def economical(trajectory: Trajectory) -> float:
    """Much fuel is left in the tank on arrival."""
    return float(trajectory.final_state["arrived"]) * float(trajectory.final_state["fuel"]) / 12


@app.policy("gold")
def gold(observation: str) -> dict[str, dict[str, str]]:
    """Drive to the customer, then park."""
    customer, position = (int(part.split()[0].rstrip(",")) for part in observation.split("km ")[1:])
    if customer == position:
        return {"park": {}}
    return {"drive": {"direction": "east" if customer > position else "west"}}
