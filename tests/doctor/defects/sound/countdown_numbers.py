"""Reach a target with three numbers and arithmetic."""

import re

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("countdown-numbers", description="Arithmetic with given numbers.")


class Row(BaseModel):
    """Three numbers and a target."""

    numbers: list[int]
    target: int
    solution: Private[str]


PUZZLES = [
    ([3, 5, 7], 22, "3*5+7"), ([2, 8, 9], 74, "8*9+2"), ([4, 6, 10], 14, "6*4-10"), ([1, 7, 8], 64, "(1+7)*8"),
    ([4, 5, 20], 25, "5*20/4"), ([2, 6, 12], 36, "12*6/2"), ([3, 9, 11], 17, "11+9-3"), ([6, 7, 9], 51, "6*7+9"),
]  # fmt: skip
app.tasks(
    "puzzles",
    row=Row,
    prompt="Use each of {numbers} exactly once, with + - * / and parentheses, to reach {target}. "
    "Answer with the expression only.",
    train=[Row(numbers=numbers, target=target, solution=solution) for numbers, target, solution in PUZZLES],
)


@app.rubric
def reaches_the_target(answer_text: str, task: Row) -> float:
    """The expression has the value of the target."""
    if not re.fullmatch(r"[\d+\-*/() ]{1,60}", answer_text) or "**" in answer_text:
        return 0.0
    if sorted(map(int, re.findall(r"\d+", answer_text))) != sorted(task.numbers):
        return 0.0
    try:
        return float(abs(eval(answer_text) - task.target) < 1e-9)  # only digits and operators get here
    except (SyntaxError, ArithmeticError, TypeError):
        return 0.0
