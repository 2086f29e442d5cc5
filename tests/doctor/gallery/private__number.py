"""The first observation shows the answer, a number."""

from pydantic import BaseModel

from taskapp_kit import Private, Step, TaskApp, action

app = TaskApp("gallery")


class Row(BaseModel):
    """One product."""

    one: int
    two: int
    answer: Private[int]


@app.environment(
    "products",
    tasks={"train": [{"one": one, "two": one + 7, "answer": one * (one + 7)} for one in range(12, 22)]},
    row=Row,
    max_steps=4,
)
class Products:
    """Multiply the numbers."""

    def reset(self, task: Row) -> str:
        self.task = task
        return f"What is {task.one} times {task.two}? (Its checksum is {task.answer}.)"

    @action(text=True)
    def say(self, text: str) -> Step:
        """Say the answer."""
        right = text.strip() == str(self.task.answer)
        return Step("right" if right else "no", reward=float(right), terminated=right)


@app.policy("gold")
def gold(task: Row) -> str:
    """Says it."""
    return str(task.answer)
