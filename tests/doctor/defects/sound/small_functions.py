"""Write a Python function that passes tests."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade
from taskapp_kit.grading.code import passes_tests

app = TaskApp("small-functions", description="Functions of one number.")


class Row(BaseModel):
    """One function, its tests, hidden tests, and a solution."""

    purpose: str
    tests: list[tuple[int, int]]
    hidden: Private[list[tuple[int, int]]]
    solution: Private[str]


FUNCTIONS = [
    ("the sum of the digits of n", [(15, 6), (204, 6), (9, 9)], [(777, 21), (10, 1)], "sum(int(d) for d in str(n))"),
    (
        "the number of divisors of n",
        [(6, 4), (7, 2), (12, 6)],
        [(1, 1), (36, 9)],
        "sum(n % d == 0 for d in range(1, n + 1))",
    ),
    ("the largest square that is at most n", [(10, 9), (16, 16), (3, 1)], [(99, 81), (24, 16)], "int(n ** 0.5) ** 2"),
    ("n with its digits reversed", [(120, 21), (7, 7), (45, 54)], [(9001, 1009), (88, 88)], "int(str(n)[::-1])"),
    ("the number of ones in the binary form of n", [(5, 2), (8, 1), (7, 3)], [(255, 8), (32, 1)], "bin(n).count('1')"),
    ("n! (the factorial of n)", [(3, 6), (5, 120), (0, 1)], [(6, 720), (4, 24)], "1 if n < 2 else n * f(n - 1)"),
]
app.tasks(
    "functions",
    row=Row,
    prompt="Write a Python function f(n) that returns {purpose}. Pairs of n and f(n): {tests}. Answer with code only.",
    train=[
        Row(purpose=purpose, tests=tests, hidden=hidden, solution=f"def f(n): return {code}")
        for purpose, tests, hidden, code in FUNCTIONS
    ],
)


@app.rubric
def tests_pass(answer_text: str, task: Row) -> Grade:
    """All tests pass, also the hidden tests."""
    return passes_tests(answer_text, "f", [([n], expected) for n, expected in [*task.tests, *task.hidden]])
