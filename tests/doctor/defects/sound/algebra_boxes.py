"""Solve a linear equation."""

import re

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("algebra-boxes", description="Linear equations.")


class Row(BaseModel):
    """One equation."""

    equation: str
    solution: Private[int]


EQUATIONS = {
    "3x + 1 = 13": 4, "2x - 5 = 1": 3, "x + 9 = 13": 4, "5x = 35": 7, "4x - 4 = 12": 4, "x / 2 = 3": 6, "7x + 2 = 30": 4,
    "10 - x = 8": 2,
}  # fmt: skip
app.tasks(
    "equations",
    row=Row,
    prompt="Solve for x: {equation}. Answer with the solution in a box only, as in \\boxed{{...}}.",
    train=[Row(equation=equation, solution=solution) for equation, solution in EQUATIONS.items()],
)


@app.rubric
def right_solution(answer_text: str, task: Row) -> float:
    """The answer is a box that contains the solution."""
    box = re.fullmatch(r"\\boxed\{(-?\d+)\}", answer_text.strip())
    return float(box is not None and int(box[1]) == task.solution)


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the box."""
    return f"\\boxed{{{task.solution}}}"
