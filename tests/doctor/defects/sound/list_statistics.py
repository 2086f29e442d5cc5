"""Write a Python function about a list of numbers."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade
from taskapp_kit.grading.code import passes_tests

app = TaskApp("list-statistics", description="Functions of a list.")


class Row(BaseModel):
    """One function, hidden tests, and a solution."""

    purpose: str
    tests: Private[list[tuple[list[int], int]]]
    solution: Private[str]


FUNCTIONS = [
    ("the median of three numbers", [([3, 1, 2], 2), ([9, 9, 1], 9)], "sorted(xs)[1]"),
    ("the range (largest minus smallest)", [([4, 9, 2], 7), ([5], 0)], "max(xs) - min(xs)"),
    ("the second largest number", [([1, 5, 3], 3), ([2, 8], 2)], "sorted(xs)[-2]"),
    ("how many numbers are even", [([1, 2, 4], 2), ([3], 0)], "sum(x % 2 == 0 for x in xs)"),
    ("the sum of the squares", [([1, 2], 5), ([3, 4], 25)], "sum(x * x for x in xs)"),
    ("the last positive number", [([1, -2, 4, -1], 4), ([6, -6], 6)], "[x for x in xs if x > 0][-1]"),
]
app.tasks(
    "statistics",
    row=Row,
    prompt="Write a Python function f(xs) that returns {purpose} of the list xs. Answer with code only.",
    train=[
        Row(purpose=purpose, tests=tests, solution=f"def f(xs): return {code}") for purpose, tests, code in FUNCTIONS
    ],
)


@app.rubric
def tests_pass(answer_text: str, task: Row) -> Grade:
    """All hidden tests pass."""
    return passes_tests(answer_text, "f", [([xs], expected) for xs, expected in task.tests])


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the solution."""
    return task.solution
