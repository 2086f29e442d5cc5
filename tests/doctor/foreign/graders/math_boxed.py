"""Competition mathematics: the last box, compared as a string after LaTeX is normalized.

Source: https://github.com/hendrycks/math/blob/main/modeling/math_equivalence.py
"""

import re

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("math-boxed")
REMOVED = ("\\left", "\\right", "\\!", "\\$", "$", "\\%", "%", "^\\circ", "^{\\circ}", " ", "\n")


class Row(BaseModel):
    """One problem."""

    problem: str
    answer: Private[str]


PROBLEMS = {
    "Simplify 6/8.": r"\frac{3}{4}", "Solve 2x = 13.": r"\frac{13}{2}", "What is 2^10?": "1024", "What is the root of 50?": r"5\sqrt{2}",
    "Solve x^2 = 49 for x > 0.": "7", "Which point is the center of x^2+y^2=1?": "(0,0)", "Factor x^2-1.": "(x-1)(x+1)",
}  # fmt: skip
app.tasks(
    "problems",
    row=Row,
    prompt=r"{problem} Put your final answer within \boxed{{}}.",
    train=[Row(problem=problem, answer=answer) for problem, answer in PROBLEMS.items()],
)


def plain(latex: str) -> str:
    for part in REMOVED:
        latex = latex.replace(part, "")
    return re.sub(r"\\[dt]frac", r"\\frac", latex.rstrip("."))


@app.rubric
def equivalent(answer_text: str, task: Row) -> float:
    """The content of the last box is the answer."""
    boxes = re.findall(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}", answer_text)
    return float(bool(boxes) and plain(boxes[-1]) == plain(task.answer))


@app.policy("gold")
def gold(task: Row) -> str:
    return rf"\boxed{{{task.answer}}}"
