"""R1-Zero's two rewards: half for the tags in the right order, half for the right answer.

Source: https://github.com/huggingface/open-r1/blob/main/src/open_r1/rewards.py
"""

import re

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("r1-format")
FORM = re.compile(r"<think>\n.*?\n</think>\n<answer>\n(.*?)\n</answer>", re.DOTALL)


class Row(BaseModel):
    """One sum."""

    question: str
    answer: Private[int]


SUMS = {"17 + 26": 43, "9 * 12": 108, "144 / 12": 12, "81 - 35": 46, "13 * 7": 91, "250 - 99": 151, "6 * 31": 186}
app.tasks(
    "sums",
    row=Row,
    prompt="What is {question}? Reply in this form:\n<think>\n...\n</think>\n<answer>\n...\n</answer>",
    train=[Row(question=question, answer=answer) for question, answer in SUMS.items()],
)


@app.rubric(weight=0.5)
def form(answer_text: str) -> float:
    """The reply has the form."""
    return float(FORM.fullmatch(answer_text) is not None)


@app.rubric(weight=0.5)
def accuracy(answer_text: str, task: Row) -> float:
    """The answer in the form is the right number."""
    found = FORM.search(answer_text)
    return float(found is not None and found[1].strip() == str(task.answer))


@app.policy("gold")
def gold(task: Row) -> str:
    """Think briefly."""
    return f"<think>\nI compute it.\n</think>\n<answer>\n{task.answer}\n</answer>"
