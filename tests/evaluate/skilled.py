"""Questions, and policies of known skill: weak answers 35 % right, strong 75 %; broken is weak, but raises in every tenth row."""

import random

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

WEAK, STRONG = 0.35, 0.75

app = TaskApp("skilled", version="1.0.0")


class Row(BaseModel):
    question: str
    answer: Private[str]
    difficulty: str
    tags: list[str] = []


app.tasks(
    "skilled",
    row=Row,
    prompt="{question} ({difficulty})",
    train=[
        Row(
            question=f"Is {n} a number?",
            answer="yes",
            difficulty="hard" if n % 3 == 0 else "easy",
            tags=["even"] if n % 2 == 0 else ["odd", "other"],
        )
        for n in range(80)
    ],
)


@app.rubric
def right(answer_text: str, task: Row) -> float:
    """The answer is the expected one."""
    return float(answer_text == task.answer)


@app.rubric(weight=0)
def brief(answer_text: str) -> float | None:
    """It is short; not asked where nothing was said."""
    return float(len(answer_text) < 3) if answer_text else None


@app.policy("weak")
def weak(observation: str, rng: random.Random) -> str:
    """Is seldom right."""
    return "yes" if rng.random() < WEAK else "no"


@app.policy("strong")
def strong(observation: str, rng: random.Random) -> str:
    """Is often right, by chances of its own."""
    rng.random()
    return "yes" if rng.random() < STRONG else "no, no"


@app.policy("broken")
def broken(observation: str, rng: random.Random) -> str:
    """Raises in every tenth row."""
    if "3 a number" in observation:
        raise RuntimeError("hidden")
    return weak(observation, rng)
