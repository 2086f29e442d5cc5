"""Write a Python function that converts a unit."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade
from taskapp_kit.grading.code import passes_tests

app = TaskApp("unit-converters", description="Functions that convert units.")


class Row(BaseModel):
    """One conversion, hidden cases, and a solution."""

    conversion: str
    cases: Private[list[tuple[float, float]]]
    solution: Private[str]


CONVERSIONS: list[tuple[str, list[tuple[float, float]], str]] = [
    ("degrees Celsius to Fahrenheit", [(0, 32), (100, 212)], "x * 1.8 + 32"),
    ("meters to feet", [(0.3048, 1), (3.048, 10)], "x / 0.3048"),
    ("hours to seconds", [(1, 3600), (0.5, 1800)], "x * 3600"),
    ("inches to centimeters", [(10, 25.4), (1, 2.54)], "x * 2.54"),
    ("kilometers per hour to meters per second", [(36, 10), (72, 20)], "x / 3.6"),
    ("grams to kilograms", [(250, 0.25), (4000, 4)], "x / 1000"),
]
app.tasks(
    "converters",
    row=Row,
    prompt="Write a Python function f(x) that converts {conversion}. Answer with code only.",
    train=[
        Row(conversion=conversion, cases=cases, solution=f"def f(x): return {code}")
        for conversion, cases, code in CONVERSIONS
    ],
)


def close(_arguments: Sequence[Any], expected: float, result: Any) -> bool:
    """Return whether a result is the expected number."""
    return type(result) in (int, float) and abs(result - expected) < 1e-6


@app.rubric
def cases_match(answer_text: str, task: Row) -> Grade:
    """The function is right in every hidden case."""
    cases = [([value], expected) for value, expected in task.cases]
    return passes_tests(answer_text, "f", cases, is_right=close)


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the solution."""
    return task.solution
