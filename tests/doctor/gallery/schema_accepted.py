"""The schema allows any text, and one that is no number raises."""

import random

from taskapp_kit import Step, TaskApp, action

app = TaskApp("gallery")


@app.environment("hunt", splits={"train": range(1000), "test": range(1000, 2000)}, max_steps=12)
class Hunt:
    """Find the number from 0 to 999. Each guess is answered with higher or lower."""

    def reset(self, seed: int) -> str:
        rng = random.Random(seed)
        self.target = rng.randrange(1000)
        return f"It is not {(self.target + rng.randrange(1, 999)) % 1000}."

    @action(sample=lambda rng: {"number": str(rng.randrange(1000))})
    def guess(self, number: str) -> Step:
        """Guess the number."""
        right = (number := int(number or 0)) == self.target
        words = "right" if right else "higher" if number < self.target else "lower"
        return Step(words, reward=float(right), terminated=right)
