"""Predict what a program returns: the reply is completed to an assertion, which is executed.

Source: https://huggingface.co/datasets/cruxeval-org/cruxeval/blob/main/README.md
"""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.sandbox import Sandbox

app = TaskApp("cruxeval-output")


class Row(BaseModel):
    """One function with an argument, and what it returns."""

    code: str
    argument: str
    output: Private[str]


FUNCTIONS = [
    ("def f(s): return s[::-1].upper()", "'abc'", "'CBA'"), ("def f(xs): return sorted(xs)[1:]", "[3, 1, 2]", "[2, 3]"),
    ("def f(n): return [i * i for i in range(n)]", "4", "[0, 1, 4, 9]"), ("def f(s): return len(s.split('a'))", "'banana'", "4"),
    ("def f(d): return max(d, key=d.get)", "{'x': 3, 'y': 5}", "'y'"), ("def f(n): return n % 7 == 3", "24", "True"),
]  # fmt: skip
app.tasks(
    "functions",
    row=Row,
    prompt="{code}\nWhat does f({argument}) return? Answer with a literal.",
    train=[Row(code=code, argument=argument, output=output) for code, argument, output in FUNCTIONS],
)


@app.rubric
def executed(answer_text: str, task: Row) -> float:
    """The assertion holds."""
    with Sandbox() as box:
        return float(box.run_sync(f"{task.code}\nassert {answer_text} == f({task.argument})").exit_code == 0)


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the literal."""
    return task.output
