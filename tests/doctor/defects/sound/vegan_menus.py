"""Decide whether a dish is vegan."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, equal_text

app = TaskApp("vegan-menus", description="Dishes with and without animal products.")


class Row(BaseModel):
    """One dish."""

    dish: str
    vegan: Private[str]


DISHES = {
    "lentil soup": "yes", "cheese fondue": "no", "hummus": "yes", "omelette": "no", "falafel": "yes", "beef goulash": "no",
    "guacamole": "yes", "honey cake": "no",
}  # fmt: skip
app.tasks(
    "dishes",
    row=Row,
    prompt="Is this dish vegan in its usual recipe: {dish}? Answer yes or no.",
    train=[Row(dish=dish, vegan=vegan) for dish, vegan in DISHES.items()],
)


@app.rubric
def right_verdict(answer_text: str, task: Row) -> Grade:
    """The verdict is right."""
    return equal_text(answer_text, task.vegan)


@app.policy("gold")
def gold(task: Row) -> str:
    """Give the verdict."""
    return task.vegan
