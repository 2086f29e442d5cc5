"""Decide whether a mail is spam."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, equal_text

app = TaskApp("spam-mails", description="Spam and other mails.")


class Row(BaseModel):
    """One mail."""

    subject: str
    spam: Private[str]


SUBJECTS = {
    "Minutes of Monday's meeting": "no", "Your train ticket": "no", "Lunch tomorrow?": "no", "You have WON $1,000,000": "yes",
    "Draft of the contract": "no", "Photos from the trip": "no", "Invoice 2231": "no", "Parents' evening": "no",
}  # fmt: skip
app.tasks(
    "mails",
    row=Row,
    prompt="Is a mail with this subject spam? {subject}\nAnswer yes or no.",
    train=[Row(subject=subject, spam=spam) for subject, spam in SUBJECTS.items()],
)


@app.rubric
def right_verdict(answer_text: str, task: Row) -> Grade:
    """The verdict is right."""
    return equal_text(answer_text, task.spam)


@app.policy("gold")
def gold(task: Row) -> str:
    """Give the verdict."""
    return task.spam
