"""Read the population of a city from a sentence."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, number

app = TaskApp("city-populations", description="Populations in sentences.")


class Row(BaseModel):
    """One sentence."""

    sentence: str
    people: Private[int]


SENTENCES = {
    "Twelve thousand five hundred people live in Wells": 12500, "Selby has nineteen thousand and sixty inhabitants": 19060,
    "About forty-one thousand people call Corby home": 41000, "Ely counts twenty thousand two hundred people": 20200,
    "In Truro there are eighteen thousand seven hundred residents": 18700, "Deal has thirty thousand people": 30000,
}  # fmt: skip
app.tasks(
    "cities",
    row=Row,
    prompt="How many people is that? {sentence}. Answer with a number in digits.",
    train=[Row(sentence=sentence, people=people) for sentence, people in SENTENCES.items()],
)


@app.rubric
def right_number(answer_text: str, task: Row) -> Grade:
    """The number is right."""
    return number(answer_text, task.people)


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the number."""
    return str(task.people)
