"""List the allergens of a product."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, same_items

app = TaskApp("allergen-lists", description="Allergens in products.")
KNOWN = ["milk", "egg", "wheat", "soy", "peanut", "sesame", "fish", "celery"]


class Row(BaseModel):
    """One product."""

    product: str
    allergens: Private[list[str]]


PRODUCTS = {
    "pancakes": ["milk", "egg", "wheat"], "tofu with noodles": ["soy", "wheat"], "satay sauce": ["peanut", "soy"],
    "tahini": ["sesame"], "fish fingers": ["fish", "wheat"], "custard": ["milk", "egg"], "Waldorf salad": ["celery", "egg"],
}  # fmt: skip
app.tasks(
    "products",
    row=Row,
    accept={"private": "The options contain the answer."},
    prompt=lambda row: (
        f"Which of these does {row.product} contain: {', '.join(KNOWN)}? List them, separated by commas."
    ),
    train=[Row(product=product, allergens=allergens) for product, allergens in PRODUCTS.items()],
)


@app.rubric
def all_listed(answer_text: str, task: Row) -> Grade:
    """The allergens are listed, and nothing else."""
    return same_items(answer_text, task.allergens)


@app.policy("gold")
def gold(task: Row) -> str:
    """List the allergens."""
    return ", ".join(task.allergens)
