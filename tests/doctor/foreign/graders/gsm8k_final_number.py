"""Grade-school word problems, graded as the data set's own code does: the number after the first `####`.

Source: https://github.com/openai/grade-school-math/blob/master/grade_school_math/dataset.py
"""

import re

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("gsm8k-final-number")


class Row(BaseModel):
    """One problem."""

    question: str
    answer: Private[int]


PROBLEMS = {
    "A box holds 12 eggs. How many eggs are in 7 boxes?": 84, "Ann had 50 euros and spent 17. How much is left?": 33,
    "Nine friends share 108 nuts equally. How many does each get?": 12, "A train makes 64 km an hour. How far in 3 hours?": 192,
    "Tom reads 15 pages a day. How many pages in two weeks?": 210, "Half of 96 cows are brown. How many are not?": 48,
    "A shirt of 1500 yen is sold for 300 yen less. What is the price?": 1200, "How many legs have 6 hens and 5 cats?": 32,
}  # fmt: skip
app.tasks(
    "problems",
    row=Row,
    prompt="{question} Reason step by step, and write the final number after ####.",
    train=[Row(question=question, answer=answer) for question, answer in PROBLEMS.items()],
)


@app.rubric
def correct(answer_text: str, task: Row) -> float:
    """The first number after `####`, without commas, is the right one."""
    found = re.search(r"#### (-?[0-9.,]+)", answer_text)
    return float(found is not None and found[1].replace(",", "") == str(task.answer))


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the number."""
    return f"#### {task.answer}"
