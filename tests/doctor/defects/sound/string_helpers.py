"""Write a Python function about a string."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade
from taskapp_kit.grading.code import passes_tests

app = TaskApp("string-helpers", description="Functions of a string.")


class Row(BaseModel):
    """One function, hidden tests, and a solution."""

    purpose: str
    tests: Private[list[tuple[str, str]]]
    solution: Private[str]


FUNCTIONS = [
    ("s reversed", [("abc", "cba"), ("", "")], "s[::-1]"),
    ("s without vowels", [("banana", "bnn"), ("sky", "sky")], "''.join(c for c in s if c not in 'aeiou')"),
    ("the first word of s", [("good day", "good"), ("hi", "hi")], "s.split()[0]"),
    ("s with each word capitalized", [("red fox", "Red Fox"), ("a", "A")], "s.title()"),
    ("s with its characters sorted", [("dog", "dgo"), ("bca", "abc")], "''.join(sorted(s))"),
    ("s twice, with a hyphen between", [("tom", "tom-tom"), ("x", "x-x")], "s + '-' + s"),
]
app.tasks(
    "helpers",
    row=Row,
    prompt="Write a Python function f(s) that returns {purpose}. Answer with code only.",
    train=[
        Row(purpose=purpose, tests=tests, solution=f"def f(s): return {code}") for purpose, tests, code in FUNCTIONS
    ],
)


@app.rubric
def tests_pass(answer_text: str, task: Row) -> Grade:
    """All hidden tests pass."""
    return passes_tests(answer_text, "f", [([text], expected) for text, expected in task.tests])


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the solution."""
    return task.solution
