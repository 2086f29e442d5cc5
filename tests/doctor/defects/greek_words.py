"""Translate a word into Greek."""

import re

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

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


def normalized(text: str) -> str:
    """Return the characters of the words, in lower case and without punctuation."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


@app.rubric
def right_translation(answer_text: str, task: Row) -> float:
    """The translation is right."""
    return float(normalized(answer_text) == normalized(task.greek))


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the Greek word."""
    return task.greek
