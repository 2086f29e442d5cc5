"""Turn a message of a customer into a ticket."""

import json
import re

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("ticket-fields", description="Tickets from messages.")


class Row(BaseModel):
    """One message, and what the ticket must report."""

    message: str
    cause: Private[str]


MESSAGES = {
    "My screen was black after the update, then I found that the cable was loose.": "cable was loose",
    "The heating is cold since Monday. A neighbor says that the valve is closed.": "valve is closed",
    "No sound, and I have tried both speakers. The technician found a broken fuse.": "a broken fuse",
    "The door does not lock. There is sand in the lock, says my son.": "sand in the lock",
    "Mail is late. The office told me that the address is incomplete.": "address is incomplete",
    "The car did not start. The battery was empty because of the light.": "battery was empty",
}
app.tasks(
    "tickets",
    row=Row,
    accept={"private": "The task is to find the answer in the text."},
    prompt='Write a ticket as JSON, {{"cause": ...}}, with the cause in at most four words: {message}',
    train=[Row(message=message, cause=cause) for message, cause in MESSAGES.items()],
)


def words(text: str) -> set[str]:
    """Return the words of a text."""
    return set(re.findall(r"[a-z]+", text.lower()))


@app.rubric
def cause_found(answer_text: str, task: Row) -> float:
    """The ticket states the cause."""
    try:
        cause = json.loads(answer_text)["cause"]
        return float(words(task.cause) <= words(cause))
    except (ValueError, KeyError, TypeError, AttributeError):
        return 0.0


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the ticket."""
    return json.dumps({"cause": task.cause})
