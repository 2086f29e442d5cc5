"""Find the seat of a friend in a theater."""

import random

from taskapp_kit import InvalidAction, Step, TaskApp, action

app = TaskApp("theater-seats", description="Finding a seat by hints.")


@app.environment("theater", splits={"train": range(12)}, max_steps=8)
class Theater:
    """Your friend is in a seat from 1 to 60. Each look halves the search at best."""

    def reset(self, seed: int) -> str:
        self.seat, self.low, self.high = random.Random(seed).randint(1, 60), 1, 60
        return "seats from 1 to 60"

    @action(sample=lambda rng: {"number": rng.randint(1, 60)})
    def look(self, number: int) -> Step:
        """Look at a seat."""
        if not 1 <= number <= 60:
            raise InvalidAction(f"There is no seat {number}.")
        if number == self.seat:
            return Step("found", reward=1.0, terminated=True)
        if number < self.seat:
            self.low = max(self.low, number + 1)
        else:
            self.high = min(self.high, number - 1)
        return Step(f"seats from {self.low} to {self.high}", reward=0.0)


@app.policy("gold")
def gold(observation: str) -> dict[str, dict[str, int]]:
    """Look at the seat in the middle."""
    low, high = (int(word) for word in observation.split() if word.isdigit())
    return {"look": {"number": (low + high) // 2}}
