"""Add fractions."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, equal_text

app = TaskApp("fraction-sums", description="Sums of fractions.")


class Row(BaseModel):
    """One sum."""

    term: str
    result: Private[str]


SUMS = {
    "1/2 + 1/4": "3/4", "1/3 + 1/6": "1/2", "2/5 + 1/10": "1/2", "3/8 + 1/8": "1/2", "1/2 + 1/3": "5/6", "5/6 - 1/3": "1/2",
    "3/4 + 3/4": "3/2", "7/8 - 1/4": "5/8",
}  # fmt: skip
app.tasks(
    "sums",
    row=Row,
    prompt="Compute {term}. Answer with a fraction in lowest terms.",
    train=[Row(term=term, result=result) for term, result in SUMS.items()],
)


@app.rubric
def right_sum(answer_text: str, task: Row) -> Grade:
    """The answer is the sum."""
    return equal_text(answer_text, task.result)


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the result."""
    return task.result
