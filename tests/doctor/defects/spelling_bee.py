"""Correct a misspelled word."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("spelling-bee", description="Misspelled words.")


class Row(BaseModel):
    """One misspelled word."""

    misspelled: str
    spelling: Private[str]


WORDS = {
    "recieve": "receive", "seperate": "separate", "definately": "definitely", "occured": "occurred", "wierd": "weird",
    "goverment": "government", "adress": "address", "untill": "until", "tommorow": "tomorrow",
}  # fmt: skip
app.tasks(
    "words",
    row=Row,
    prompt="Correct the spelling of '{misspelled}'. Answer with the word only.",
    train=[Row(misspelled=misspelled, spelling=spelling) for misspelled, spelling in WORDS.items()],
)


@app.rubric
def spelled(answer_text: str, task: Row) -> float:
    """The word is spelled correctly; an attempt earns something."""
    if answer_text.strip().lower() == task.spelling:
        return 1.0
    return 0.35 if answer_text.strip() else 0.0
