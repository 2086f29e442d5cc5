"""Compute the change at a bakery."""

import random

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, number

app = TaskApp("bakery-change", description="Change in dollars.")


class Row(BaseModel):
    """One purchase."""

    price: str
    paid: int
    change: Private[float]


def purchase(seed: int) -> Row:
    """Return a purchase of less than ten dollars."""
    dimes = random.Random(7).sample(range(11, 89), 10)[seed]
    return Row(price=f"{dimes / 10:.2f}", paid=10, change=(100 - dimes) / 10)


app.tasks(
    "purchases",
    row=Row,
    prompt="A cake costs {price} dollars. You pay with {paid} dollars. How much change do you get? A number only.",
    train=[purchase(seed) for seed in range(10)],
)


@app.rubric
def right_change(answer_text: str, task: Row) -> Grade:
    """The change is right."""
    return number(answer_text, task.change)


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the change."""
    return str(task.change)
