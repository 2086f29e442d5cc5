"""List the stops between two stations."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, same_sequence

app = TaskApp("metro-stops", description="Stops of a metro line.")
LINE = ["Harbor", "Market", "Castle", "Museum", "Bridge", "University", "Stadium", "Airport"]


class Row(BaseModel):
    """One ride."""

    start: str
    end: str
    stops: Private[list[str]]


RIDES = [(0, 5), (7, 2), (1, 4), (6, 0), (2, 7), (5, 1)]


def ride(start: int, end: int) -> Row:
    """Return the ride between two stations."""
    between = LINE[start + 1 : end] if start < end else LINE[end + 1 : start][::-1]
    return Row(start=LINE[start], end=LINE[end], stops=between)


app.tasks(
    "rides",
    row=Row,
    accept={"private": "The task is to find the answer in the text."},
    prompt=lambda row: (
        f"The line: {' - '.join(LINE)}. Which stops come between {row.start} and {row.end}, in the order of the ride? "
        "Separate them by commas."
    ),
    train=[ride(start, end) for start, end in RIDES],
)


@app.rubric
def right_stops(answer_text: str, task: Row) -> Grade:
    """Each stop is right."""
    return same_sequence(answer_text, task.stops)


@app.policy("gold")
def gold(task: Row) -> str:
    """List the stops."""
    return ", ".join(task.stops)
