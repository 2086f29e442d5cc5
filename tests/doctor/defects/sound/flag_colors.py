"""List the colors of a flag."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, same_items

app = TaskApp("flag-colors", description="Colors of flags.")


class Row(BaseModel):
    """One country."""

    country: str
    colors: Private[str]


FLAGS = {
    "Poland": "white, red", "Ukraine": "blue, yellow", "Sweden": "blue, yellow", "Italy": "green, white, red",
    "Ireland": "green, white, orange", "Japan": "white, red", "Romania": "blue, yellow, red",
}  # fmt: skip
app.tasks(
    "flags",
    row=Row,
    prompt="Which colors does the flag of {country} have? List them in any order, separated by commas.",
    train=[Row(country=country, colors=colors) for country, colors in FLAGS.items()],
)


@app.rubric
def right_colors(answer_text: str, task: Row) -> Grade:
    """The colors are right."""
    return same_items(answer_text, task.colors.split(", "))
