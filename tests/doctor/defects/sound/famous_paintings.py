"""Name the painter of a famous painting."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, equal_text, tagged

app = TaskApp("famous-paintings", description="Painters of famous paintings.")


class Row(BaseModel):
    """One painting."""

    painting: str
    painter: Private[str]


PAINTERS = {
    "The Starry Night": "Van Gogh", "Guernica": "Picasso", "The Scream": "Munch", "The Night Watch": "Rembrandt",
    "The Birth of Venus": "Botticelli", "The Kiss": "Klimt", "Las Meninas": "Velázquez",
}  # fmt: skip
app.tasks(
    "painters",
    row=Row,
    prompt="Who painted {painting}? Write the family name as <painter>NAME</painter>.",
    train=[Row(painting=painting, painter=painter) for painting, painter in PAINTERS.items()],
)


@app.rubric
def right_painter(answer_text: str, task: Row) -> Grade:
    """The painter is right."""
    return equal_text(tagged(answer_text, "painter"), task.painter)


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the name in the tag."""
    return f"<painter>{task.painter}</painter>"
