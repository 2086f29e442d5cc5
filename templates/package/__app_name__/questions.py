"""Questions with one right answer each, from JSONL files."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, equal_text, number

app = TaskApp("__app_name__-questions", version="0.1.0", description="Short questions with one right answer.")


class Row(BaseModel):
    """A line of train.jsonl or test.jsonl."""

    question: str
    answer: Private[int | float | str]
    unit: str | None = None


app.tasks(
    "questions",
    row=Row,
    prompt="{question} Reply with the answer alone.",
    train="train.jsonl",
    test="test.jsonl",
)


@app.rubric
def correct(answer_text: str, task: Row) -> Grade:
    """The answer is right, and nothing is added to it, except the unit of a number."""
    if isinstance(task.answer, str):
        return equal_text(answer_text, task.answer)
    return number(answer_text, task.answer, unit=task.unit)


@app.policy("gold")
def gold(task: Row) -> str:
    """Give the right answer."""
    return str(task.answer)
