"""Compute how the temperature changed overnight."""

import random

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, number

app = TaskApp("weather-changes", description="Changes of temperature.")


class Row(BaseModel):
    """One night."""

    evening: int
    morning: int
    change: Private[int]


def night(seed: int) -> Row:
    """Return a night with different temperatures."""
    evening, morning = random.Random(seed).sample(range(-12, 25), 2)
    return Row(evening=evening, morning=morning, change=morning - evening)


app.tasks(
    "nights",
    row=Row,
    prompt="It was {evening} degrees in the evening and {morning} degrees in the morning. "
    "By how many degrees did the temperature change? A fall is negative. Answer with a number only.",
    train=[night(seed) for seed in range(10)],
)


@app.rubric
def right_change(answer_text: str, task: Row) -> Grade:
    """The change is right."""
    return number(answer_text, task.change)


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the change."""
    return str(task.change)
