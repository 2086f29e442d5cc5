"""Play Nim with one heap: take 1 to 3 matches; the player who takes the last match wins."""

import random
from typing import Any

from taskapp_kit import InvalidAction, Step, TaskApp, Trajectory, action

app = TaskApp("nim-games", description="Nim with one heap of matches.")


@app.environment("nim", splits={"train": range(10)}, max_steps=10)
class Nim:
    """You begin. The opponent takes a random number of matches. A move against the rules ends the game."""

    def reset(self, seed: int) -> str:
        self.rng, self.winner = random.Random(seed), ""
        self.heap = self.rng.choice([9, 10, 11, 13, 14, 15])
        return f"{self.heap} matches"

    @action(sample=lambda rng: {"matches": rng.randint(1, 3)})
    def take(self, matches: int) -> Step:
        """Take matches from the heap."""
        if not 1 <= matches <= min(3, self.heap):
            raise InvalidAction("You must take 1 to 3 matches. The game has ended.", end=True)
        self.heap -= matches
        if self.heap == 0:
            self.winner = "you"
            return Step("You win.", terminated=True)
        self.heap -= self.rng.randint(1, min(3, self.heap))
        if self.heap == 0:
            self.winner = "opponent"
            return Step("The opponent wins.", terminated=True)
        return Step(f"{self.heap} matches")

    def final_state(self) -> dict[str, Any]:
        return {"winner": self.winner}


@app.rubric
def won(trajectory: Trajectory) -> float:
    """You have won."""
    return float(trajectory.final_state["winner"] == "you")


@app.policy("gold")
def gold(observation: str) -> dict[str, dict[str, int]]:
    """Leave a multiple of four."""
    return {"take": {"matches": int(observation.split(maxsplit=1)[0]) % 4 or 1}}
