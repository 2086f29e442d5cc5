"""A row of test is one of train, with other spaces."""

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

app.tasks(
    "ask",
    row=Row,
    prompt="{question} Answer with one word.",
    train=ROWS[:4],
    test=[*ROWS[4:], Row(question="what is the capital of  France?", answer="Paris")],
)


@app.rubric
def correct(answer_text: str, task: Row) -> float:
    """The capital is named."""
    return float(answer_text.strip().lower() == task.answer.lower())


@app.policy("gold")
def gold(task: Row) -> str:
    """Names it."""
    return task.answer
