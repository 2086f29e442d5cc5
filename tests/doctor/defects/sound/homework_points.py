"""Solve an exercise about percentages."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, number

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


@app.rubric
def solved(answer_text: str, task: Row) -> Grade:
    """The exercise is solved."""
    return number(answer_text, task.solution)


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the solution."""
    return task.solution
