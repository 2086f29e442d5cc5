"""Reasoning over a passage: exact match, or word F1 that is 0 if the numbers differ.

Source: https://github.com/allenai/allennlp-reading-comprehension/blob/master/allennlp_rc/eval/drop_eval.py
"""

import re

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("drop-numbers")
PASSAGE = (
    "In the final, the Hawks scored 14 points in each half. The Owls scored 21 points before the break and 10 after it."
)


class Row(BaseModel):
    """One question."""

    question: str
    answer: Private[str]


QUESTIONS = {
    "How many points did the Hawks score?": "28", "How many points did the Owls score?": "31", "Who won?": "Owls",
    "By how many points?": "3", "Which team scored the same in both halves?": "Hawks",
    "How many points were scored in all?": "59", "How many points were scored before the break?": "35",
}  # fmt: skip
app.tasks(
    "questions",
    row=Row,
    prompt=PASSAGE + " {question} Answer with a number or a name.",
    train=[Row(question=question, answer=answer) for question, answer in QUESTIONS.items()],
)


def bag(text: str) -> set[str]:
    tokens = re.split(r"[\s-]+", re.sub(r"\b(a|an|the)\b", " ", text.lower()))
    return {
        str(float(token)) if re.fullmatch(r"\d+(\.\d+)?", token) else token.strip(".,!?;:'\"()") for token in tokens
    } - {""}


@app.rubric
def f1(answer_text: str, task: Row) -> float:
    """F1 of the sets of words; an answer without the right number earns nothing."""
    answer, expected = bag(answer_text), bag(task.answer)
    numbers = {token for token in expected if token[0].isdigit()}
    if numbers and not numbers & answer:
        return 0.0
    return 2 * len(answer & expected) / max(1, len(answer) + len(expected))


app.policy("gold")(lambda task: task.answer)
