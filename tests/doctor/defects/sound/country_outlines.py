"""Name the country in a description."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, equal_text

app = TaskApp("country-outlines", description="Countries and their descriptions.")


class Row(BaseModel):
    """One country, with its other names."""

    description: str
    name: Private[str]
    also: Private[list[str]]


COUNTRIES = [
    ("It has windmills, and its seat of government is The Hague", "Netherlands", ["Holland", "The Netherlands"]),
    ("Its largest city is Abidjan", "Ivory Coast", ["Côte d'Ivoire"]), ("Its capital is Naypyidaw", "Myanmar", ["Burma"]),
    ("Its capital is Prague", "Czech Republic", ["Czechia"]), ("Its capital is Mbabane", "Eswatini", ["Swaziland"]),
    ("Its capital is London", "United Kingdom", ["UK", "Great Britain"]),
]  # fmt: skip
app.tasks(
    "countries",
    row=Row,
    prompt="Which country is this? {description}. Answer with its name only.",
    train=[Row(description=description, name=name, also=also) for description, name, also in COUNTRIES],
)


@app.rubric
def right_country(answer_text: str, task: Row) -> Grade:
    """The country is right."""
    return equal_text(answer_text, [task.name, *task.also])


@app.policy("gold")
def gold(task: Row) -> str:
    """Name the country."""
    return task.name
