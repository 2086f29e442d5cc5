"""Name the language from which English took a word."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, equal_text

app = TaskApp("loan-words", description="Words that English took from other languages.")


class Row(BaseModel):
    """One entry of the dictionary."""

    entry: Private[str]
    word: str
    language: Private[str]


ENTRIES = [
    "ety/german/kindergarten", "ety/arabic/algebra", "ety/finnish/sauna", "ety/japanese/tsunami", "ety/czech/robot",
    "ety/italian/umbrella", "ety/hindi/shampoo", "ety/russian/mammoth",
]  # fmt: skip


def row(entry: str) -> Row:
    """Return the row of an entry."""
    _, language, word = entry.split("/")
    return Row(entry=entry, word=word, language=language)


app.tasks(
    "words",
    row=Row,
    prompt="From which language did English take the word '{word}'? Answer with the language only.",
    train=[row(entry) for entry in ENTRIES],
)


@app.rubric
def right_language(answer_text: str, task: Row) -> Grade:
    """The language is right."""
    return equal_text(answer_text, task.language)


@app.policy("gold")
def gold(task: Row) -> str:
    """Name the language."""
    return task.language
