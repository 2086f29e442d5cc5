"""Date an event."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, number, tagged

app = TaskApp("history-years", description="Years of well-known events.")


class Row(BaseModel):
    """One event."""

    event: str
    year: Private[int]


YEARS = {
    "the first crewed landing on the moon": 1969, "the fall of the Berlin Wall": 1989, "the storming of the Bastille": 1789,
    "the Great Fire of London": 1666, "the sinking of the Titanic": 1912, "the Battle of Hastings": 1066,
    "the first modern Olympic Games": 1896, "the Wall Street crash": 1929,
}  # fmt: skip
app.tasks(
    "years",
    row=Row,
    prompt="In which year was {event}? Finish with <answer>YEAR</answer>.",
    train=[Row(event=event, year=year) for event, year in YEARS.items()],
)


@app.rubric
def right_year(answer_text: str, task: Row) -> Grade:
    """The year is right."""
    return number(tagged(answer_text), task.year)


@app.policy("gold")
def gold(task: Row) -> str:
    """Answer in the tag."""
    return f"It is well documented. <answer>{task.year}</answer>"
