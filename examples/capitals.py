"""Capitals: a single-turn question set."""
from pydantic import BaseModel
from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, equal_text

app = TaskApp("capitals", version="1.0.0")

class Row(BaseModel):
    question: str
    answer: Private[str]

app.tasks("capitals", row=Row, prompt="{question} Answer with one word.", train=[    # or a path: train="train.jsonl"
    Row(question="What is the capital of France?", answer="Paris"),
    Row(question="What is the capital of Japan?", answer="Tokyo"),
])

@app.rubric
def correct(answer_text: str, task: Row) -> Grade:
    """The answer is the capital, and nothing else."""
    return equal_text(answer_text, task.answer)
