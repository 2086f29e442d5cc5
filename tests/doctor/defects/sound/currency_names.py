"""Name the currency of a country."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, equal_text

app = TaskApp("currency-names", description="Currencies of countries.")


class Row(BaseModel):
    """One country."""

    country: str
    currency: Private[str]


CURRENCIES = {
    "Japan": "Yen", "Germany": "Euro", "India": "Rupee", "Poland": "Zloty", "Kenya": "Shilling", "Mexico": "Peso",
    "Sweden": "Krona",
}  # fmt: skip
app.tasks(
    "currencies",
    row=Row,
    prompt="What is the currency of {country} called? Answer with its name only.",
    train=[Row(country=country, currency=currency) for country, currency in CURRENCIES.items()],
)


@app.rubric
def right_currency(answer_text: str, task: Row) -> Grade:
    """The currency is right."""
    return equal_text(answer_text, task.currency)
