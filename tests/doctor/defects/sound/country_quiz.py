"""Choose the country to which a city belongs."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, choice

app = TaskApp("country-quiz", description="Cities and countries.")


class Row(BaseModel):
    """One city, with its country and two others."""

    city: str
    options: list[str]
    country: Private[str]


CITIES = [
    ("Porto", "Portugal", "Spain", "Brazil"), ("Graz", "Austria", "Germany", "Croatia"), ("Lille", "France", "Belgium", "Canada"),
    ("Turku", "Finland", "Sweden", "Estonia"), ("Split", "Croatia", "Italy", "Serbia"), ("Ghent", "Belgium", "Netherlands", "France"),
    ("Malmo", "Sweden", "Denmark", "Norway"), ("Brno", "Czechia", "Slovakia", "Poland"),
]  # fmt: skip
app.tasks(
    "cities",
    row=Row,
    prompt=lambda row: (
        f"In which country is {row.city}? A: {row.options[0]}, B: {row.options[1]}, C: {row.options[2]}. Answer A, B or C."
    ),
    train=[Row(city=city, options=sorted([country, *others]), country=country) for city, country, *others in CITIES],
)


@app.rubric
def right_country(answer_text: str, task: Row) -> Grade:
    """The country is right."""
    return choice(answer_text, task.country, task.options)


@app.policy("gold")
def gold(task: Row) -> str:
    """Name the country."""
    return task.country
