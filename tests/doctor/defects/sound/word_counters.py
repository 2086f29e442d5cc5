"""Write a Python function that counts something in a text."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade
from taskapp_kit.grading.code import passes_tests

app = TaskApp("word-counters", description="Functions that count.")
SECOND_TEXT = "A b b\n7"


class Row(BaseModel):
    """One function, hidden tests, and a solution."""

    counted: str
    text: Private[str]
    count: Private[int]
    second_count: Private[int]
    solution: Private[str]


FUNCTIONS = [
    ("words", "to be or not to be", 6, 4, "len(text.split())"), ("lines", "a\nb\nc", 3, 2, "len(text.splitlines())"),
    ("different words", "to be or not to be", 4, 3, "len(set(text.split()))"),
    ("digits", "4 apples and 12 pears", 3, 1, "sum(c.isdigit() for c in text)"),
    ("capital characters", "Ada and Bo", 2, 1, "sum(c.isupper() for c in text)"),
    ("spaces", "a b c d", 3, 2, "text.count(' ')"),
]  # fmt: skip
app.tasks(
    "counters",
    row=Row,
    prompt="Write a Python function f(text) that returns the number of {counted} in a text. Answer with code only.",
    train=[
        Row(counted=counted, text=text, count=count, second_count=second, solution=f"def f(text): return {code}")
        for counted, text, count, second, code in FUNCTIONS
    ],
)


@app.rubric
def test_passes(answer_text: str, task: Row) -> Grade:
    """The hidden tests pass."""
    return passes_tests(answer_text, "f", [([task.text], task.count), ([SECOND_TEXT], task.second_count)])


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the solution."""
    return task.solution
