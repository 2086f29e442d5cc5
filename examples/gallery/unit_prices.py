"""Numeric questions: word problems that are generated from a seed and graded with a tolerance."""

import random

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, number

app = TaskApp("unit-prices", version="1.0.0", description="Work out what one kilogram costs.")


class Row(BaseModel):
    product: str
    grams: int
    cents: int
    answer: Private[float]


def rows(seeds: range) -> list[Row]:
    """One problem for each seed."""
    made = []
    for seed in seeds:
        rng = random.Random(seed)
        grams, cents = rng.randrange(150, 2000, 50), rng.randrange(80, 1500)
        product = rng.choice(["rice", "coffee", "almonds", "cheese", "honey"])
        made.append(Row(product=product, grams=grams, cents=cents, answer=cents / grams * 10))
    return made


app.tasks(
    "unit-prices",
    row=Row,
    prompt="{grams} g of {product} cost {cents} cents. What does 1 kg cost, in euros? Answer with one number.",
    train=lambda: rows(range(200)),
    test=lambda: rows(range(1000, 1050)),
)


@app.rubric
def correct(answer_text: str, task: Row) -> Grade:
    """The price is right to the cent."""
    return number(answer_text, task.answer, absolute_tolerance=0.0051, unit="€", units={"euros": 1})


@app.policy("gold")
def calculator(task: Row) -> str:
    """The answer of the row, rounded as a till would."""
    return f"{task.answer:.2f}"
