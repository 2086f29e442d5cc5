"""A model may give a hint, and its role is not declared."""

import contextlib
import random
from typing import Annotated, Any

from pydantic import Field

from taskapp_kit import Step, TaskApp, Unavailable, action

app = TaskApp("gallery")


@app.environment("hunt", splits={"train": range(1000), "test": range(1000, 2000)}, max_steps=12)
class Hunt:
    """Find the number from 0 to 999. Each guess is answered with higher or lower."""

    def reset(self, seed: int, context: Any) -> str:
        rng = random.Random(seed)
        self.target = rng.randrange(1000)
        with contextlib.suppress(Unavailable):  # plays without a hint
            context.model("guide").ask([{"role": "user", "content": f"Give a hint about {self.target}."}])
        return f"It is not {(self.target + rng.randrange(1, 999)) % 1000}."

    @action
    def guess(self, number: Annotated[int, Field(ge=0, le=999)]) -> Step:
        """Guess the number."""
        right = number == self.target
        words = "right" if right else "higher" if number < self.target else "lower"
        return Step(words, float(right), terminated=right)
