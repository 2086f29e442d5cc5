"""Assign people to the shifts of a weekend."""

import json

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("shift-plans", description="Plans for the shifts of a weekend.")


class Row(BaseModel):
    """One weekend: who cannot work when."""

    absences: list[tuple[str, str]]
    example: Private[str]


ABSENCES = [
    [("Ana", "saturday"), ("Ben", "sunday")], [("Eva", "saturday"), ("Ana", "saturday")], [("Ben", "saturday")],
    [("Ana", "sunday"), ("Eva", "sunday")], [("Eva", "sunday")], [("Ben", "sunday"), ("Eva", "sunday")],
]  # fmt: skip


def weekend(absences: list[tuple[str, str]]) -> Row:
    """Return a weekend with a plan that suits everyone."""
    plan = {
        day: min({"Ana", "Ben", "Eva"} - {name for name, off in absences if off == day})
        for day in ("saturday", "sunday")
    }
    return Row(absences=absences, example=json.dumps(plan))


app.tasks(
    "weekends",
    row=Row,
    prompt=lambda row: (
        'Plan the weekend as JSON: {"saturday": NAME, "sunday": NAME}, with Ana, Ben or Eva. '
        + " ".join(f"{name} is away on {day}." for name, day in row.absences)
    ),
    train=[weekend(absences) for absences in ABSENCES],
)


@app.rubric
def nobody_is_away(answer_text: str, task: Row) -> float:
    """No one works while away."""
    try:
        plan = json.loads(answer_text)
    except ValueError:
        return 0.0
    complete = isinstance(plan, dict) and set(plan) == {"saturday", "sunday"}
    known = complete and all(name in ("Ana", "Ben", "Eva") for name in plan.values())
    return float(known and all(plan[day] != name for name, day in task.absences))


@app.policy("gold")
def gold(task: Row) -> str:
    """Write a plan that suits everyone."""
    return task.example
