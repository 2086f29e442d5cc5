"""Translate a word into Greek."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, equal_text

app = TaskApp("greek-words", description="English words in Greek.")


class Row(BaseModel):
    """One word."""

    english: str
    greek: Private[str]


WORDS = {
    "sea": "θάλασσα", "sun": "ήλιος", "bread": "ψωμί", "water": "νερό", "friend": "φίλος", "house": "σπίτι", "book": "βιβλίο",
    "taxi": "ταξί",
}  # fmt: skip
app.tasks(
    "words",
    row=Row,
    prompt="Translate into Greek, with Greek characters: {english}",
    train=[Row(english=english, greek=greek) for english, greek in WORDS.items()],
)


@app.rubric
def right_translation(answer_text: str, task: Row) -> Grade:
    """The translation is right."""
    return equal_text(answer_text, task.greek)


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the Greek word."""
    return task.greek
