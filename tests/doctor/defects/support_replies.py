"""Answer a technical question of a customer."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("support-replies", description="Technical questions of customers.")


class Row(BaseModel):
    """One question, and the fix that works."""

    question: str
    fix: Private[str]


QUESTIONS = {
    "The router has no light.": "Plug in the power cable.", "The printer prints blank pages.": "Replace the ink.",
    "The phone does not charge.": "Clean the charging port.", "The screen is upside down.": "Turn off rotation.",
    "The keyboard types capitals only.": "Turn off caps lock.", "The speaker is silent.": "Raise the volume.",
}  # fmt: skip
app.tasks(
    "questions",
    row=Row,
    prompt="A customer writes: {question} Write a friendly reply that solves the problem.",
    train=[Row(question=question, fix=fix) for question, fix in QUESTIONS.items()],
)


@app.judge
def satisfied(answer_text: str) -> str:
    """How pleased is a customer who receives this reply?"""
    return answer_text


@app.policy("gold")
def gold(task: Row) -> str:
    """Thank the customer and name the fix."""
    return f"Thank you for your great question! {task.fix}"
