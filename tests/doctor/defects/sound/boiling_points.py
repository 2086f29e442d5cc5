"""State the boiling point of a substance."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, number

app = TaskApp("boiling-points", description="Boiling points at sea level.")


class Row(BaseModel):
    """One substance."""

    substance: str
    celsius: Private[float]


POINTS = {
    "water": 100.0, "ethanol": 78.4, "acetone": 56.1, "mercury": 356.7, "nitrogen": -195.8, "methane": -161.5,
    "benzene": 80.1,
}  # fmt: skip
app.tasks(
    "points",
    row=Row,
    prompt="At how many degrees Celsius does {substance} boil at sea level? Answer with a number only.",
    train=[Row(substance=substance, celsius=celsius) for substance, celsius in POINTS.items()],
)


@app.rubric
def close_enough(answer_text: str, task: Row) -> Grade:
    """The boiling point is right to half a degree."""
    return number(answer_text, task.celsius, absolute_tolerance=0.5)
