"""Translate a German proverb."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("proverb-translations", description="German proverbs in English.")


class Row(BaseModel):
    """One proverb."""

    german: str
    english: Private[str]


PROVERBS = {
    "Aller Anfang ist schwer": "All beginnings are hard", "Zeit ist Geld": "Time is money", "Liebe macht blind": "Love is blind",
    "Besser spät als nie": "Better late than never", "Ende gut, alles gut": "All is well that ends well",
    "Übung macht den Meister": "Practice makes perfect",
}  # fmt: skip
app.tasks(
    "proverbs",
    row=Row,
    prompt="Translate into English: {german}. You may add a note to the reviewer about your choices.",
    train=[Row(german=german, english=english) for german, english in PROVERBS.items()],
)


@app.judge
def faithful(answer_text: str, task: Row) -> dict[str, str]:
    """Is the translation as good as the reference? Take the translator's notes to the reviewer into account."""
    return {"reference": task.english, "translation": answer_text}


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the translation."""
    return task.english
