"""Apps of one turn and of several, with an environment that raises and a judge that fails on request."""

from __future__ import annotations

from pydantic import BaseModel

from taskapp_kit import Private, Step, TaskApp, action

app = TaskApp("asking", version="1.0.0")


class Row(BaseModel):
    question: str
    answer: Private[str]
    breaks: bool = False


ROWS = [
    Row(question="one and one", answer="two"),
    Row(question="two and two", answer="four-only-here"),
    Row(question="it breaks", answer="x", breaks=True),
]

app.tasks("asking", row=Row, prompt="{question}?", train=ROWS[:2], test=ROWS[2:])


@app.environment("raising", splits={"train": range(4)}, max_turns=1)
class Raising:
    """Say a word."""

    def reset(self, seed: int) -> str:
        self.seed = seed
        return f"seed {seed}"

    @action(text=True)
    def say(self, text: str) -> Step:
        """Say it."""
        if text == "raise":
            raise RuntimeError("sentinel-raised")
        return Step(terminated=True)


@app.environment("counting", splits={"train": range(20_000)}, max_turns=5)
class Counting:
    """Add until it is enough."""

    def reset(self, seed: int) -> str:
        self.total = 0
        return f"reach {seed % 3 + 1}"

    @action
    def add(self, amount: int) -> Step:
        """Add `amount`."""
        self.total += amount
        return Step(f"total {self.total}", reward=float(amount), terminated=self.total >= 3)


@app.rubric(environment="asking")
def correct(answer_text: str, task: Row) -> float:
    """The answer is named."""
    return float(task.answer in answer_text)


@app.rubric(environment="raising")
def short(answer_text: str) -> float | None:
    """It is short; not applicable to silence."""
    if answer_text == "undefined":
        return None
    if answer_text == "unscorable":
        raise ValueError("the rubric broke")
    return float(len(answer_text) < 5)
