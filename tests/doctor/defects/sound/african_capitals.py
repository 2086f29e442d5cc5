"""Name the capital of an African country."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, equal_text

app = TaskApp("african-capitals", description="Capitals of African countries.")


class Row(BaseModel):
    """One country."""

    country: str
    capital: Private[str]


CAPITALS = {
    "Kenya": "Nairobi", "Ghana": "Accra", "Morocco": "Rabat", "Senegal": "Dakar", "Zambia": "Lusaka", "Uganda": "Kampala",
    "Angola": "Luanda", "Egypt": "Cairo",
}  # fmt: skip
ROWS = [Row(country=country, capital=capital) for country, capital in CAPITALS.items()]
app.tasks("capitals", row=Row, prompt="What is the capital of {country}? Answer with its name only.", train=ROWS)


@app.rubric
def names_the_capital(answer_text: str, task: Row) -> Grade:
    """The answer is the capital."""
    return equal_text(answer_text, task.capital)
