"""The judge's question has one answer, whatever is read."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("gallery")


class Row(BaseModel):
    """One question."""

    question: str
    answer: Private[str]


CAPITALS = [
    ("France", "Paris"),
    ("Japan", "Tokyo"),
    ("Peru", "Lima"),
    ("Kenya", "Nairobi"),
    ("Norway", "Oslo"),
    ("Cuba", "Havana"),
]
ROWS = [Row(question=f"What is the capital of {country}?", answer=city) for country, city in CAPITALS]

app.tasks("ask", row=Row, prompt="{question} Answer with one word.", train=ROWS)


@app.rubric
def correct(answer_text: str, task: Row) -> float:
    """The capital is named."""
    return float(answer_text.strip().lower() == task.answer.lower())


@app.judge(weight=0)
def polite(answer_text: str) -> str:
    """Is this a text?"""
    return answer_text


@app.policy("gold")
def gold(task: Row) -> str:
    """Names it."""
    return task.answer
