"""Answer a question about a rented flat with yes or no."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, equal_text, last_line

app = TaskApp("tenancy-advice", description="Questions about house rules.")
RULES = "Pets up to 10 kg are allowed. Smoking is not allowed. Guests may stay for two weeks. Parties end at ten."


class Row(BaseModel):
    """One question."""

    question: str
    allowed: Private[str]


QUESTIONS = {
    "May I keep a cat of 5 kg?": "yes", "May I smoke in the kitchen?": "no", "May my brother stay for a week?": "yes",
    "May my party end at midnight?": "no", "May I keep a dog of 30 kg?": "no", "May a friend stay for three days?": "yes",
}  # fmt: skip
app.tasks(
    "questions",
    row=Row,
    prompt=lambda row: (
        f"House rules: {RULES}\n\n{row.question} Explain in one sentence, then end with `Verdict: yes` or `Verdict: no`."
    ),
    train=[Row(question=question, allowed=allowed) for question, allowed in QUESTIONS.items()],
)


@app.rubric
def right_verdict(answer_text: str, task: Row) -> Grade:
    """The answer ends with the right verdict."""
    return equal_text(last_line(answer_text, "Verdict:"), task.allowed)


@app.policy("gold")
def gold(task: Row) -> str:
    """Give the verdict and the reason."""
    return f"The house rules cover this.\nVerdict: {task.allowed}"
