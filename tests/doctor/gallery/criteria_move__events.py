"""A criterion of events gives every step the same."""

from taskapp_kit import Step, TaskApp, action

app = TaskApp("gallery")


@app.environment("coin", splits={"train": range(1000), "test": range(1000, 2000)}, max_steps=1)
class Coin:
    """Say whether the number is even."""

    def reset(self, seed: int) -> str:
        self.seed = seed
        return f"The number is {seed}."

    @action
    def even(self, answer: bool) -> Step:
        """Answer."""
        return Step("", reward=float(answer == (self.seed % 2 == 0)), terminated=True)


@app.rubric(of="events")
def polite(step: Step) -> float:
    """Nothing rude was said."""
    return 1.0
