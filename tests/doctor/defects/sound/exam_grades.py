"""Grade exams, and state the grades."""

import random
import re

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("exam-grades", description="Grades from points.")


class Row(BaseModel):
    """The points of four exams, and their grades."""

    points: list[int]
    grades: Private[list[int]]


def exams(seed: int) -> Row:
    """Return four exams with up to 50 points."""
    points = [random.Random(10 * seed + number).randint(0, 49) for number in range(4)]
    return Row(points=points, grades=[5 - count // 10 for count in points])


app.tasks(
    "exams",
    row=Row,
    prompt="Grades: 40 to 49 points 1, 30 to 39 points 2, 20 to 29 points 3, 10 to 19 points 4, below 10 points 5. "
    "State the grades of these exams, in this order, separated by spaces: {points}",
    train=[exams(seed) for seed in range(8)],
)


@app.rubric
def right_grades(answer_text: str, task: Row) -> float:
    """The share of the grades that are right."""
    grades = [int(digits) for digits in re.findall(r"\d+", answer_text)]
    total = sum(given == grade for given, grade in zip(grades, task.grades, strict=False))
    return total / len(task.grades) if len(grades) == len(task.grades) else 0.0


@app.policy("gold")
def gold(task: Row) -> str:
    """State the grades."""
    return " ".join(str(grade) for grade in task.grades)
