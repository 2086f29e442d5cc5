"""Multiple choice: the letter after the first `Answer:`.

Source: https://github.com/openai/simple-evals/blob/main/common.py
"""

import re

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("mmlu-letter")


class Row(BaseModel):
    """One question with its four options."""

    question: str
    options: list[str]
    letter: Private[str]


QUESTIONS = [
    ("Which gas do plants take in?", ["oxygen", "carbon dioxide", "helium", "neon"], "B"),
    ("Which planet is the largest?", ["Mars", "Venus", "Earth", "Jupiter"], "D"),
    ("What is 7 times 8?", ["56", "54", "48", "63"], "A"), ("Who wrote Hamlet?", ["Goethe", "Dante", "Shakespeare", "Homer"], "C"),
    ("Which metal is liquid at 20 degrees?", ["iron", "mercury", "zinc", "gold"], "B"),
    ("How many sides has a hexagon?", ["five", "seven", "six", "eight"], "C"),
    ("Which ocean is the deepest?", ["Arctic", "Indian", "Atlantic", "Pacific"], "D"),
    ("What is the chemical symbol of gold?", ["Au", "Ag", "Go", "Gd"], "A"),
]  # fmt: skip
app.tasks(
    "questions",
    row=Row,
    prompt=lambda row: (
        f"{row.question} A) {row.options[0]} B) {row.options[1]} C) {row.options[2]} D) {row.options[3]}\n"
        "Think step by step. The last line must be 'Answer: LETTER', where LETTER is one of ABCD."
    ),
    train=[Row(question=question, options=options, letter=letter) for question, options, letter in QUESTIONS],
)


@app.rubric
def right_letter(answer_text: str, task: Row) -> float:
    """The letter is the right one."""
    found = re.search(r"(?i)answer[ \t]*:[ \t]*\$?([A-D])\$?", answer_text)
    return float(found is not None and found[1].upper() == task.letter)


app.policy("gold")(lambda task: f"Answer: {task.letter}")
