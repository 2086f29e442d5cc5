"""Find the liar among three people."""

import re

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("truth-tellers", description="Puzzles with one liar.")


class Row(BaseModel):
    """One puzzle."""

    statements: str
    liar: Private[str]


PUZZLES = [
    ("Ann: Bo lies. Bo: I was home. Cy: Ann and I tell the truth.", "Bo"),
    ("Ann: Cy tells the truth. Bo: Ann lies. Cy: Bo lies.", "Bo"),
    ("Ann: two and two is five. Bo: Ann lies. Cy: Bo is right.", "Ann"),
    ("Ann: Bo is honest. Bo: Cy lies. Cy: snow is black.", "Cy"),
    ("Ann: Cy lies. Bo: Cy lies. Cy: Ann lies.", "Cy"),
    ("Ann: I am Bo. Bo: I am not Ann. Cy: Ann lies.", "Ann"),
]
FORM = re.compile(r"\s*<reasoning>.*</reasoning>\s*<answer>(.*)</answer>\s*", re.DOTALL)
app.tasks(
    "puzzles",
    row=Row,
    prompt="Exactly one of three people lies. {statements}\n"
    "Who? Reply as <reasoning>…</reasoning><answer>NAME</answer>.",
    train=[Row(statements=statements, liar=liar) for statements, liar in PUZZLES],
)


@app.rubric(weight=1)
def form(answer_text: str) -> float:
    """The reply has the requested form."""
    return float(FORM.fullmatch(answer_text) is not None)


@app.rubric(weight=3, required=True)
def right_name(answer_text: str, task: Row) -> float:
    """The liar is named."""
    match = FORM.fullmatch(answer_text)
    return float(match is not None and match[1].strip() == task.liar)


@app.policy("gold")
def gold(task: Row) -> str:
    """Name the liar in the requested form."""
    return f"<reasoning>Only this statement can be false.</reasoning><answer>{task.liar}</answer>"
