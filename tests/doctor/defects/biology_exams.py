"""Answer a question of a biology exam in one sentence."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("biology-exams", description="Questions of a biology exam.")


class Row(BaseModel):
    """One question, and a sentence that answers it."""

    question: str
    model_answer: Private[str]


QUESTIONS = {
    "What do roots do?": "They take up water.", "What does the heart do?": "It pumps blood.",
    "Why are leaves green?": "They contain chlorophyll.", "What do gills do?": "They take oxygen from water.",
    "What do bees collect?": "They collect nectar and pollen.", "What do lungs do?": "They take oxygen from air.",
}  # fmt: skip
app.tasks(
    "exams",
    row=Row,
    prompt="{question} Answer in one sentence.",
    train=[Row(question=question, model_answer=answer) for question, answer in QUESTIONS.items()],
)


@app.judge
def same_content(answer_text: str, task: Row) -> str:
    """Two teachers read each exam. Does the student's answer agree with the model answer?"""
    return f"Model answer: {task.model_answer}\nStudent's answer: {answer_text}\nVerdict of the first teacher:"
