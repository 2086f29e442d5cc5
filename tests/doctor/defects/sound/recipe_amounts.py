"""Scale an ingredient of a recipe."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, number

app = TaskApp("recipe-amounts", description="Recipes for more people.")


class Row(BaseModel):
    """One ingredient."""

    ingredient: str
    people: int
    amount: Private[str]


AMOUNTS = [
    ("125 g of flour for 2", 4, "250 g"), ("300 ml of milk for 4", 2, "150 ml"), ("1 kg of potatoes for 4", 6, "1.5 kg"),
    ("2 l of stock for 8", 4, "1 l"), ("40 g of butter for 2", 6, "120 g"), ("90 ml of oil for 3", 5, "150 ml"),
]  # fmt: skip
app.tasks(
    "amounts",
    row=Row,
    prompt="A recipe needs {ingredient} people. How much is needed for {people} people? Answer as in `20 g`.",
    train=[Row(ingredient=ingredient, people=people, amount=amount) for ingredient, people, amount in AMOUNTS],
)


@app.rubric
def right_amount(answer_text: str, task: Row) -> Grade:
    """The amount is right."""
    size, unit = task.amount.split()
    return number(answer_text, size, unit=unit, unit_required=True)
