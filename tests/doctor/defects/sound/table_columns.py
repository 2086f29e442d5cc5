"""Write a Python module that works on rows of a table."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade
from taskapp_kit.grading.code import passes_tests

app = TaskApp("table-columns", description="Functions of a table.")


class Row(BaseModel):
    """One function, the results for the tables of the tests, and a solution."""

    purpose: str
    expected: Private[list[int]]
    second: Private[list[int]]
    solution: Private[str]


FUNCTIONS = [
    ("the first column", [1, 4], [7, 2], "[row[0] for row in rows]"), ("the sum of each row", [6, 15], [7, 11], "[sum(row) for row in rows]"),
    ("the sum of each column", [5, 7, 9], [9, 9], "[sum(column) for column in zip(*rows)]"),
    ("the last row", [4, 5, 6], [2, 9], "rows[-1]"), ("all numbers", [1, 2, 3, 4, 5, 6], [7, 0, 2, 9], "[x for row in rows for x in row]"),
    ("the largest number of each row", [3, 6], [7, 9], "[max(row) for row in rows]"),
]  # fmt: skip
app.tasks(
    "columns",
    row=Row,
    prompt="Write solution.py with a function f(rows) that returns {purpose} as a list. Answer with code only.",
    train=[
        Row(purpose=purpose, expected=expected, second=second, solution=f"def f(rows): return {code}")
        for purpose, expected, second, code in FUNCTIONS
    ],
)


@app.rubric
def check_passes(answer_text: str, task: Row) -> Grade:
    """The hidden tests pass."""
    cases = [([[[1, 2, 3], [4, 5, 6]]], task.expected), ([[[7, 0], [2, 9]]], task.second)]
    return passes_tests(answer_text, "f", cases)


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the solution."""
    return task.solution
