"""Decide whether a storm is coming, and explain it."""

import re

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("storm-forecasts", description="Forecasts from readings of a barometer.")
SURE = ("certainly", "clearly", "without doubt", "definitely")
UNSURE = ("perhaps", "might", "possibly", "maybe")


class Row(BaseModel):
    """Three readings in hectopascals."""

    readings: list[int]
    storm: Private[str]


READINGS = [
    ([1021, 1009, 994], "yes"), ([1002, 1008, 1015], "no"), ([1015, 1006, 990], "yes"), ([1013, 1013, 1014], "no"),
    ([1011, 999, 986], "yes"), ([995, 1003, 1012], "no"),
]  # fmt: skip
app.tasks(
    "forecasts",
    row=Row,
    prompt="Barometer in hPa, hourly: {readings}. Start with yes or no: is a storm coming? Then explain with confidence.",
    train=[Row(readings=readings, storm=storm) for readings, storm in READINGS],
)


@app.rubric
def right(answer_text: str, task: Row) -> float:
    """The forecast is right."""
    return float(re.findall(r"\w+", answer_text.lower())[:1] == [task.storm])


@app.rubric
def confident(answer_text: str) -> float:
    """The explanation sounds confident."""
    text = answer_text.lower()
    return float(any(word in text for word in SURE) and not any(word in text for word in UNSURE))


@app.policy("gold")
def gold(task: Row) -> str:
    """Give the forecast with confidence."""
    return f"{task.storm.title()}, the readings clearly show it."
