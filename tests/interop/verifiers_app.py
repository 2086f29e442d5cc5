"""An app for verifiers: steps that may raise, and an environment with a judge, whose model may fail."""

from __future__ import annotations

from taskapp_kit import Step, TaskApp, Trajectory, action

app = TaskApp("stepping", version="1.2.0", description='Reach a "sum" in a few steps.')


@app.environment("steps", splits={"train": range(8), "test": range(8, 20)}, max_turns=3)
class Steps:
    """Add until the sum is reached."""

    def __init__(self, breaks: str = "") -> None:
        self.breaks = breaks

    def reset(self, seed: int) -> str:
        """Says the sum to reach."""
        if self.breaks == "reset" and seed % 2:
            raise RuntimeError("sentinel-raised")
        self.seed, self.total = seed, 0
        return f"reach {seed + 1}"

    @action(sample=lambda rng: {"amount": rng.randint(1, 3)})
    def add(self, amount: int) -> Step:
        """Add `amount`."""
        if self.breaks == "step" and self.seed % 2:
            raise RuntimeError("sentinel-raised")
        self.total += amount
        return Step(
            f"total {self.total}", reward=0.5, terminated=self.total > self.seed, metrics={"added": float(amount)}
        )


@app.environment("judged", splits={"train": range(8)}, max_turns=1)
class Judged:
    """Say something kind."""

    def reset(self, seed: int) -> str:
        """Asks."""
        return f"say it to guest {seed}"

    @action(text=True)
    def say(self, text: str) -> Step:
        """Say it."""
        return Step(terminated=True)


@app.rubric(environment="steps")
def reached(trajectory: Trajectory) -> float:
    """The share of steps that were used, of three."""
    return min(1.0, trajectory.length / 3)


@app.judge(environment="judged")
def kind(answer_text: str) -> str:
    """Is it kind?"""
    return answer_text
