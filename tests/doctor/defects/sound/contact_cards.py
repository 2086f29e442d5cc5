"""Read a contact card."""

import json

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, json_equal

app = TaskApp("contact-cards", description="Contact cards as JSON.")


class Row(BaseModel):
    """One signature of a mail."""

    signature: str
    contact: Private[dict[str, str]]


SIGNATURES = [
    ("Regards, Thomas Grant, Bristol", "Thomas", "Grant", "Bristol"),
    ("James, Alice | York", "Alice", "James", "York"),
    ("Best wishes from Leeds! Scott Taylor", "Scott", "Taylor", "Leeds"),
    ("Kelly, Ryan - Oxford", "Ryan", "Kelly", "Oxford"),
    ("Paris Martin, Dover", "Paris", "Martin", "Dover"),
    ("Owen, Lloyd. Cardiff", "Lloyd", "Owen", "Cardiff"),
]
ROWS = [
    Row(signature=signature, contact={"first": first, "last": last, "city": city})
    for signature, first, last, city in SIGNATURES
]
app.tasks(
    "cards",
    row=Row,
    accept={"private": "The task is to find the answer in the text."},
    prompt="Return a JSON object with the fields first, last and city for this signature: {signature}",
    train=ROWS,
)


@app.rubric
def right_contact(answer_text: str, task: Row) -> Grade:
    """The contact is complete and right."""
    return json_equal(answer_text, task.contact)


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the contact as JSON."""
    return json.dumps(task.contact)
