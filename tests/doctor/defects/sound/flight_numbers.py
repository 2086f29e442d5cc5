"""Write a flight number in its short form."""

import re

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("flight-numbers", description="Short forms of flight numbers.")


class Row(BaseModel):
    """One announcement."""

    announcement: str
    code: Private[str]


FLIGHTS = {
    "Lufthansa four hundred": "LH400", "Iberia thirty-two": "IB32", "Delta nine": "DL9", "Finnair one seventeen": "AY117",
    "Qantas twelve": "QF12", "Emirates two oh one": "EK201",
}  # fmt: skip
app.tasks(
    "flights",
    row=Row,
    prompt="Airlines: Lufthansa LH, Iberia IB, Delta DL, Finnair AY, Qantas QF, Emirates EK.\n"
    "Write the flight number of: {announcement}. For example, Iberia five is IB5.",
    train=[Row(announcement=announcement, code=code) for announcement, code in FLIGHTS.items()],
)


@app.rubric
def right_code(answer_text: str, task: Row) -> float:
    """The flight number is right, with or without a space."""
    airline, number = task.code[:2], task.code[2:]
    return float(re.fullmatch(rf"{airline}\s?{number}", answer_text.strip()) is not None)


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the flight number."""
    return task.code
