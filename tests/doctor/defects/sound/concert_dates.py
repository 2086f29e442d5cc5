"""Read the date of a concert."""

import json

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, json_equal

app = TaskApp("concert-dates", description="Dates of concerts as JSON.")


class Row(BaseModel):
    """One poster."""

    poster: str
    artist: Private[str]
    date: Private[str]


POSTERS = [
    ("Live on May 3rd, 2024: The Owls!", "The Owls", "2024-05-03"), ("Mira Blue, 14 June 2025", "Mira Blue", "2025-06-14"),
    ("New Year's Day 2026 with Brass Ten", "Brass Ten", "2026-01-01"), ("Kilo - Halloween 2025", "Kilo", "2025-10-31"),
    ("The Tides, the day after 28 Feb 2024", "The Tides", "2024-02-29"), ("7/4/2025 (US): Sam Roe", "Sam Roe", "2025-07-04"),
]  # fmt: skip
app.tasks(
    "posters",
    row=Row,
    accept={"private": "The task is to find the answer in the text."},
    prompt="Return a JSON object with artist and date (YYYY-MM-DD) of this concert: {poster}",
    train=[Row(poster=poster, artist=artist, date=date) for poster, artist, date in POSTERS],
)


@app.rubric
def right_concert(answer_text: str, task: Row) -> Grade:
    """Artist and date are right."""
    return json_equal(answer_text, {"artist": task.artist, "date": task.date})


@app.policy("gold")
def gold(task: Row) -> str:
    """Write artist and date as JSON."""
    return json.dumps({"artist": task.artist, "date": task.date})
