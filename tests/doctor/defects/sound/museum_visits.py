"""Find a fact in the leaflet of a museum."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, equal_text

app = TaskApp("museum-visits", description="Questions about a leaflet.")
LEAFLET = (
    "The museum opens at ten and closes at six. Tickets cost nine euros; on Thursdays entry is free. "
    "The oldest object is a bronze mirror. The cafe is on the second floor, and the garden is behind the tower."
)


class Row(BaseModel):
    """One question."""

    question: str
    fact: Private[str]


QUESTIONS = {
    "When does the museum open?": "ten", "When does it close?": "six", "What does a ticket cost?": "nine euros",
    "On which days is entry free?": "Thursdays", "What is the oldest object?": "a bronze mirror",
    "On which floor is the cafe?": "second", "What is the garden behind?": "the tower",
}  # fmt: skip
app.tasks(
    "visits",
    row=Row,
    accept={"private": "The task is to find the answer in the text."},
    prompt=lambda row: f"{LEAFLET}\n\n{row.question} Answer with the words from the leaflet, and only those.",
    train=[Row(question=question, fact=fact) for question, fact in QUESTIONS.items()],
)


@app.rubric
def states_the_fact(answer_text: str, task: Row) -> Grade:
    """The fact from the leaflet is stated."""
    return equal_text(answer_text, task.fact)
