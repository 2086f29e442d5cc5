"""Solve an exercise about percentages."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("homework-points", description="Exercises about percentages.")


class Row(BaseModel):
    """One exercise."""

    exercise: str
    solution: Private[str]


EXERCISES = {
    "20 % of 45": "9", "5 % of 200": "10", "75 % of 60": "45", "110 % of 30": "33", "12 % of 50": "6", "1 % of 4200": "42",
    "40 % of 90": "36", "15 % of 80": "12",
}  # fmt: skip
app.tasks(
    "exercises",
    row=Row,
    prompt="How much is {exercise}? Answer with a number only.",
    train=[Row(exercise=exercise, solution=solution) for exercise, solution in EXERCISES.items()],
)


def clean(text: str) -> str:
    """Return the text without spaces and a period at the end."""
    return text.strip().rstrip(".")


@app.rubric
def solved(answer_text: str, task: Row) -> float:
    """The exercise is solved."""
    solution = clean(task.solution)
    answer = clean(task.solution)
    return float(answer == solution and answer_text is not None)


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the solution."""
    return task.solution
