"""Translate the German name of a color or a material."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, equal_text

app = TaskApp("paint-colors", description="German words of a paint shop.")


class Row(BaseModel):
    """One word."""

    german: str
    english: Private[str]
    british: Private[str]


WORDS = {
    "grau": ("gray", "grey"), "Farbe": ("color", "colour"), "Aluminium": ("aluminum", "aluminium"), "Schimmel": ("mold", "mould"), "Pflug": ("plow", "plough"), "Glanz": ("luster", "lustre"),
}  # fmt: skip
app.tasks(
    "colors",
    row=Row,
    prompt="Translate this German word into English, with one word: {german}",
    train=[Row(german=german, english=english, british=british) for german, (english, british) in WORDS.items()],
)


@app.rubric
def right_word(answer_text: str, task: Row) -> Grade:
    """The translation is right."""
    return equal_text(answer_text, [task.english, task.british])
