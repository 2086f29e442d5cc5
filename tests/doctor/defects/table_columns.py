"""Write a Python module that works on rows of a table."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.sandbox import Sandbox

app = TaskApp("table-columns", description="Functions of a table.")
CHECK = "import solution\nassert solution.f([[1, 2, 3], [4, 5, 6]]) == {expected}\nprint('all tests passed')\n"


class Row(BaseModel):
    """One function, the result for the table of the test, and a solution."""

    purpose: str
    expected: Private[list[int]]
    solution: Private[str]


FUNCTIONS = [
    ("the first column", [1, 4], "[row[0] for row in rows]"), ("the sum of each row", [6, 15], "[sum(row) for row in rows]"),
    ("the sum of each column", [5, 7, 9], "[sum(column) for column in zip(*rows)]"),
    ("the last row", [4, 5, 6], "rows[-1]"), ("all numbers", [1, 2, 3, 4, 5, 6], "[x for row in rows for x in row]"),
    ("the largest number of each row", [3, 6], "[max(row) for row in rows]"),
]  # fmt: skip
app.tasks(
    "columns",
    row=Row,
    prompt="Write solution.py with a function f(rows) that returns {purpose} as a list. Answer with code only.",
    train=[
        Row(purpose=purpose, expected=expected, solution=f"def f(rows): return {code}")
        for purpose, expected, code in FUNCTIONS
    ],
)


@app.rubric
def check_passes(answer_text: str, task: Row) -> float:
    """The module can be imported, and the hidden check passes."""
    with Sandbox(files={"solution.py": answer_text, "check.py": CHECK.format(expected=task.expected)}) as box:
        if not box.run_sync("import solution").ok:
            return 0.0
        result = box.run_sync(["python", "check.py"])
    return float(result.ok and result.stdout.endswith("all tests passed\n"))


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the solution."""
    return task.solution
