"""Add up a bill from the market."""

import random

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, last_line, number

app = TaskApp("market-totals", description="Bills from the market.")


class Row(BaseModel):
    """One bill."""

    bill: str
    total: Private[int]


def bill(seed: int) -> Row:
    """Return a bill for three kinds of fruit."""
    rng = random.Random(seed)
    items = [
        (name, rng.randint(1, 5), rng.randint(1, 4)) for name in rng.sample(["apples", "pears", "figs", "plums"], 3)
    ]
    text = "; ".join(f"{count} {name} at {price} dollars each" for name, count, price in items)
    return Row(bill=text, total=sum(count * price for _, count, price in items))


app.tasks(
    "bills",
    row=Row,
    prompt="Someone buys: {bill}. How many dollars is that? Explain, and end with a line like `Total: 7`.",
    train=[bill(seed) for seed in range(12)],
)


@app.rubric
def total_is_right(answer_text: str, task: Row) -> Grade:
    """The total is right."""
    return number(last_line(answer_text, "Total:"), task.total)


@app.policy("gold")
def gold(task: Row) -> str:
    """State the total."""
    return f"Total: {task.total}"
