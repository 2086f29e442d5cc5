"""Change a booking as the guest asks."""

import random

from taskapp_kit import Step, TaskApp, action

app = TaskApp("hotel-changes", description="Changes of hotel bookings.")
VALUES = {"nights": ["2", "3", "5"], "room": ["single", "double"], "breakfast": ["yes", "no"], "floor": ["1", "4", "9"]}


@app.environment("desk", splits={"train": range(10)}, max_steps=6)
class Desk:
    """The guest asks for two changes. Each saved change earns a half."""

    def reset(self, seed: int) -> str:
        rng = random.Random(seed)
        self.booking: dict[str, str] = {}
        self.wanted = {field: rng.choice(VALUES[field]) for field in rng.sample(sorted(VALUES), 2)}
        return "please change: " + ", ".join(f"{field} to {value}" for field, value in self.wanted.items())

    @action(sample=lambda rng: {"field": rng.choice(sorted(VALUES)), "value": rng.choice(["2", "yes", "double"])})
    def change(self, field: str, value: str) -> Step:
        """Set a field of the booking: nights, room, breakfast or floor."""
        if self.wanted.get(field) != value or field in self.booking:
            return Step(f"{field} cannot be set to {value}", reward=0.0)
        self.booking[field] = value
        left = ", ".join(f"{name} to {wish}" for name, wish in self.wanted.items() if name not in self.booking)
        return Step(f"saved; please change: {left}", reward=0.5, terminated=len(self.booking) == len(self.wanted))


@app.policy("gold")
def gold(observation: str) -> dict[str, dict[str, str]]:
    """Make the next change."""
    field, value = observation.removeprefix("saved; ").removeprefix("please change: ").partition(", ")[0].split(" to ")
    return {"change": {"field": field, "value": value}}
