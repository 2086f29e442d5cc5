"""Compute the discount of an offer."""

import random

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, number

app = TaskApp("shop-discounts", description="Discounts in percent.")


class Row(BaseModel):
    """One offer."""

    before: int
    after: int
    percent: Private[float]


def offer(seed: int) -> Row:
    """Return an offer with a discount from 5 to 60 percent."""
    rng = random.Random(seed)
    before, percent = 100 * rng.randint(1, 9), rng.randint(5, 60)
    return Row(before=before, after=before - before * percent // 100, percent=percent)


app.tasks(
    "offers",
    row=Row,
    prompt="A coat was {before} dollars and is now {after} dollars. What is the discount in percent? A number only.",
    train=[offer(seed) for seed in range(8)],
)


@app.rubric
def right_discount(answer_text: str, task: Row) -> Grade:
    """The discount is right, as a percentage or as a fraction."""
    return number(answer_text, task.percent)


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the percentage."""
    return f"{task.percent:g}"
