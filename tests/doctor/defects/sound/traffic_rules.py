"""Answer a question of a driving test."""

from typing import Literal

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, equal_text

app = TaskApp("traffic-rules", description="Questions of a driving test with four options.")


class Row(BaseModel):
    """One question."""

    question: str
    correct: Private[Literal["A", "B", "C", "D"]]


QUESTIONS: list[tuple[str, Literal["A", "B", "C", "D"]]] = [
    ("What does a red light mean?\nA: go\nB: slow down\nC: stop\nD: turn", "C"),
    ("Which sign is an octagon?\nA: stop\nB: yield\nC: parking\nD: one way", "A"),
    ("What is worn in a car?\nA: a helmet\nB: a seat belt\nC: a vest\nD: nothing", "B"),
    ("Who goes first at a crosswalk?\nA: trucks\nB: cars\nC: cyclists\nD: pedestrians", "D"),
    ("What does a flashing blue light require?\nA: to speed up\nB: to make way\nC: to honk\nD: to park", "B"),
    ("Where do slow vehicles drive?\nA: left lane\nB: middle\nC: right lane\nD: shoulder", "C"),
    ("When are headlights used?\nA: at night\nB: at noon\nC: never\nD: on Sundays", "A"),
]
app.tasks(
    "questions",
    row=Row,
    prompt="{question}\n\nAnswer with the letter of the right option only.",
    train=[Row(question=question, correct=correct) for question, correct in QUESTIONS],
)


@app.rubric
def right_option(answer_text: str, task: Row) -> Grade:
    """The right option was chosen."""
    return equal_text(answer_text, task.correct)
