"""Compute the hours of a working day."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, number

app = TaskApp("working-hours", description="Hours of a working day.")


class Row(BaseModel):
    """One day."""

    day: str
    hours: Private[float]


DAYS = {
    "9:00 to 17:00 with a break of 30 minutes": 7.5, "8:15 to 12:00 without a break": 3.75,
    "22:00 to 4:15 without a break": 6.25, "7:00 to 15:00 with a break of 45 minutes": 7.25,
    "10:00 to 18:45 with a break of 1 hour": 7.75, "6:30 to 11:00 without a break": 4.5,
}  # fmt: skip
app.tasks(
    "hours",
    row=Row,
    prompt="How many hours does someone work from {day}? Answer with a decimal number.",
    train=[Row(day=day, hours=hours) for day, hours in DAYS.items()],
)


@app.rubric
def right_hours(answer_text: str, task: Row) -> Grade:
    """The hours are right."""
    return number(answer_text, task.hours)


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the hours."""
    return str(task.hours)
