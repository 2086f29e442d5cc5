"""Sort parcels into bins by weight, then close the shift."""

import random
from typing import Any, Literal

from taskapp_kit import InvalidAction, Step, TaskApp, Trajectory, action

app = TaskApp("parcel-sorting", description="A shift in a parcel center.")


@app.environment("shift", splits={"train": range(10)}, max_steps=12)
class Shift:
    """Parcels under 10 kg go into bin light, the others into bin heavy."""

    def reset(self, seed: int) -> dict[str, Any]:
        rng = random.Random(seed)
        self.weights = {name: rng.choice([2, 5, 8, 12, 20, 30]) for name in ("a", "b", "c", "d")}
        self.bins: dict[str, str] = {}
        return self.final_state()

    @action
    def sort(self, parcel: Literal["a", "b", "c", "d"], bin: Literal["light", "heavy"]) -> dict[str, Any]:
        """Put a parcel into a bin."""
        if parcel in self.bins:
            raise InvalidAction(f"Parcel {parcel} is sorted already.")
        self.bins[parcel] = bin
        return self.final_state()

    @action(noop={})
    def close_shift(self) -> Step:
        """Close the shift."""
        return Step("The shift is closed.", terminated=True)

    def final_state(self) -> dict[str, Any]:
        return {"weights": dict(self.weights), "bins": dict(self.bins)}


@app.rubric
def sorted_right(trajectory: Trajectory) -> float:
    """The parcels are in the right bins."""
    weights, bins = trajectory.final_state["weights"], trajectory.final_state["bins"]
    right = sum((weights[parcel] < 10) == (bin == "light") for parcel, bin in bins.items())
    return float(right / len(weights))


@app.policy("gold")
def gold(observation: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Sort the next parcel, then close the shift."""
    for parcel, weight in observation["weights"].items():
        if parcel not in observation["bins"]:
            return {"sort": {"parcel": parcel, "bin": "light" if weight < 10 else "heavy"}}
    return {"close_shift": {}}
