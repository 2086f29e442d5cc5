"""Extraction as JSON: the decoded reply is equal to the expected object, element by element.

Source: https://github.com/openai/evals/blob/main/evals/elsuite/basic/json_match.py
"""

import json

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("json-match")


class Row(BaseModel):
    """One message and its fields."""

    message: str
    fields: Private[dict[str, str | int]]


MESSAGES = [
    ("Hi, it's Ana Ruiz. Two tickets for Friday, please.", {"name": "Ana Ruiz", "tickets": 2, "day": "Friday"}),
    ("Book four seats on Sunday for Bo Lind.", {"name": "Bo Lind", "tickets": 4, "day": "Sunday"}),
    ("One for me, Chen Wu, on Monday.", {"name": "Chen Wu", "tickets": 1, "day": "Monday"}),
    ("We are six and come on Saturday. Regards, Dora Papp", {"name": "Dora Papp", "tickets": 6, "day": "Saturday"}),
    ("Edo Sato would like 3 places, Tuesday.", {"name": "Edo Sato", "tickets": 3, "day": "Tuesday"}),
    ("Thursday, five people, under the name of Fay Moss.", {"name": "Fay Moss", "tickets": 5, "day": "Thursday"}),
]  # fmt: skip
app.tasks(
    "messages",
    row=Row,
    prompt="Extract name, tickets (a number) and day as a JSON object, without other text: {message}",
    train=[Row(message=message, fields=fields) for message, fields in MESSAGES],
)


@app.rubric
def match(answer_text: str, task: Row) -> float:
    """The reply is the same JSON value."""
    try:
        return float(json.loads(answer_text) == task.fields)
    except (ValueError, RecursionError):
        return 0.0


app.policy("gold")(lambda task: json.dumps(task.fields))
