"""Read the fields of an invoice."""

import json

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, json_equal

app = TaskApp("invoice-fields", description="Fields of invoices as JSON.")


class Row(BaseModel):
    """One invoice."""

    invoice: str
    fields: Private[str]


INVOICES = [
    ("Invoice 117 of Bolt & Co, 45.00 EUR", {"number": 117, "seller": "Bolt & Co", "total": 45.0}),
    ("Ocean Ltd - total 9.90 EUR - no. 23", {"number": 23, "seller": "Ocean Ltd", "total": 9.9}),
    ("No. 5 from Mill Bakery about 3.20 EUR", {"number": 5, "seller": "Mill Bakery", "total": 3.2}),
    ("Peak Tools, invoice 881, 120.50 EUR", {"number": 881, "seller": "Peak Tools", "total": 120.5}),
    ("Invoice 64: 17.00 EUR to Fern Books", {"number": 64, "seller": "Fern Books", "total": 17.0}),
    ("To pay: 8.75 EUR, Dot Print, no. 302", {"number": 302, "seller": "Dot Print", "total": 8.75}),
]
app.tasks(
    "invoices",
    row=Row,
    prompt="Return a JSON object with number, seller and total of this invoice: {invoice}",
    train=[Row(invoice=invoice, fields=json.dumps(fields)) for invoice, fields in INVOICES],
)


@app.rubric
def right_fields(answer_text: str, task: Row) -> Grade:
    """Every field is right."""
    return json_equal(answer_text, json.loads(task.fields))
