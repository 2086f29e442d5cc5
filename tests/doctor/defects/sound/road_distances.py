"""Estimate the distance between two cities by road."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, number

app = TaskApp("road-distances", description="Distances by road.")


class Row(BaseModel):
    """One pair of cities."""

    start: str
    end: str
    kilometers: Private[int]


DISTANCES = [
    ("Berlin", "Hamburg", 289), ("Paris", "Lyon", 465), ("Rome", "Naples", 226), ("Madrid", "Barcelona", 621),
    ("London", "Leeds", 314), ("Vienna", "Graz", 200), ("Oslo", "Bergen", 463), ("Munich", "Cologne", 573),
]  # fmt: skip
app.tasks(
    "distances",
    row=Row,
    prompt="How far is it from {start} to {end} by road, in kilometers? Answer with an integer, accurate to 10 km.",
    train=[Row(start=start, end=end, kilometers=kilometers) for start, end, kilometers in DISTANCES],
)


@app.rubric
def about_right(answer_text: str, task: Row) -> Grade:
    """The distance is about right."""
    return number(answer_text, task.kilometers, absolute_tolerance=10)
