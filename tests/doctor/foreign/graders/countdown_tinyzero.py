"""Countdown: an equation in the last answer tag; 1 if it uses each number once and is right, 0.1 for any other equation.

Source: https://github.com/Jiayi-Pan/TinyZero/blob/main/verl/utils/reward_score/countdown.py
"""

import re

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("countdown-tinyzero")


class Row(BaseModel):
    """One puzzle with a solution."""

    numbers: list[int]
    target: int
    solution: Private[str]


PUZZLES = [
    ([44, 19, 35], 98, "44 + 19 + 35"), ([63, 95, 96], 62, "63 + 95 - 96"), ([3, 5, 7], 22, "3 * 5 + 7"),
    ([8, 2, 6], 10, "8 / 2 + 6"), ([9, 4, 10], 26, "4 * 9 - 10"), ([25, 5, 3], 8, "25 / 5 + 3"), ([11, 6, 2], 34, "(11 + 6) * 2"),
]  # fmt: skip
app.tasks(
    "puzzles",
    row=Row,
    prompt="Using the numbers {numbers}, each exactly once, write an equation that equals {target}. Use + - * / and parentheses. "
    "Show your work in <think> </think> tags, and return the equation in <answer> </answer> tags.",
    train=[Row(numbers=numbers, target=target, solution=solution) for numbers, target, solution in PUZZLES],
)


@app.rubric
def score(answer_text: str, task: Row) -> float:
    """1 for a right equation, 0.1 for another one, 0 without tags."""
    answers = re.findall(r"<answer>(.*?)</answer>", answer_text.rsplit("\n", maxsplit=1)[-1])
    if not answers:
        return 0.0
    if sorted(map(int, re.findall(r"\d+", answers[-1]))) != sorted(task.numbers):
        return 0.1
    if not re.match(r"^[\d+\-*/().\s]+$", answers[-1]) or "**" in answers[-1]:
        return 0.1
    try:
        return 1.0 if abs(eval(answers[-1], {"__builtins__": None}) - task.target) < 1e-5 else 0.1
    except (SyntaxError, TypeError, ArithmeticError, ValueError):
        return 0.1


app.policy("gold")(lambda task: f"<answer>{task.solution}</answer>")
