"""Functions with a signature and hidden tests: the program and the tests run together, and must end without an error.

Source: https://github.com/openai/human-eval/blob/master/human_eval/execution.py
"""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.sandbox import Sandbox

app = TaskApp("humaneval-check")


class Row(BaseModel):
    """One function, its hidden tests, and a solution."""

    name: str
    purpose: str
    tests: Private[list[str]]
    solution: Private[str]


FUNCTIONS = [
    ("double", "twice x", ["candidate(3) == 6", "candidate(-2) == -4"], "2 * x"),
    ("is_even", "whether x is even", ["candidate(4) is True", "candidate(7) is False"], "x % 2 == 0"),
    ("last_digit", "the last digit of x", ["candidate(123) == 3", "candidate(40) == 0"], "x % 10"),
    ("digits", "the number of digits of x", ["candidate(1234) == 4", "candidate(9) == 1"], "len(str(x))"),
    ("square", "the square of x", ["candidate(5) == 25", "candidate(-3) == 9"], "x * x"),
    ("half", "x divided by 2, rounded down", ["candidate(9) == 4", "candidate(10) == 5"], "x // 2"),
]  # fmt: skip
app.tasks(
    "functions",
    row=Row,
    prompt="Write a Python function {name}(x: int) that returns {purpose}. Answer with code only.",
    train=[Row(name=n, purpose=p, tests=t, solution=f"def {n}(x: int):\n    return {s}") for n, p, t, s in FUNCTIONS],
)


@app.rubric
def passed(answer_text: str, task: Row) -> float:
    """The program ends without an error."""
    check = "\n".join(f"    assert {test}" for test in task.tests)
    with Sandbox() as box:
        return float(
            box.run_sync(f"{answer_text}\n\ndef check(candidate):\n{check}\n\ncheck({task.name})").exit_code == 0
        )


app.policy("gold")(lambda task: task.solution)
