"""Write a Python function that counts something in a text."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.sandbox import Sandbox

app = TaskApp("word-counters", description="Functions that count.")


class Row(BaseModel):
    """One function, a hidden test, and a solution."""

    counted: str
    text: Private[str]
    count: Private[int]
    solution: Private[str]


FUNCTIONS = [
    ("words", "to be or not to be", 6, "len(text.split())"), ("lines", "a\nb\nc", 3, "len(text.splitlines())"),
    ("different words", "to be or not to be", 4, "len(set(text.split()))"),
    ("digits", "4 apples and 12 pears", 3, "sum(c.isdigit() for c in text)"),
    ("capital characters", "Ada and Bo", 2, "sum(c.isupper() for c in text)"),
    ("spaces", "a b c d", 3, "text.count(' ')"),
]  # fmt: skip
app.tasks(
    "counters",
    row=Row,
    prompt="Write a Python function f(text) that returns the number of {counted} in a text. Answer with code only.",
    train=[
        Row(counted=counted, text=text, count=count, solution=f"def f(text): return {code}")
        for counted, text, count, code in FUNCTIONS
    ],
)


@app.rubric
def test_passes(answer_text: str, task: Row) -> float:
    """The hidden test passes."""
    check = f"print('passed' if f({task.text!r}) == {task.count} else 'failed')"
    with Sandbox() as box:
        result = box.run_sync(f"{answer_text}\n\n{check}")
    return float("passed" in result.stdout)


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the solution."""
    return task.solution
