"""Rewrite a safety notice as one sentence."""

import re

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("safety-notices", description="Safety notices in plain words.")


class Row(BaseModel):
    """One notice."""

    notice: str
    sentence: Private[str]


NOTICES = {
    "OPEN LID ONLY AFTER COOLING": "Open the lid after it has cooled", "HELMETS ON SITE": "Wear a helmet on this site",
    "ICE THIN - KEEP OFF": "Keep off the thin ice", "FIRE EXIT - KEEP CLEAR": "Keep the fire exit clear",
    "DANGER: LIVE WIRES": "Touch the wires only when the power is off", "WASH HANDS": "Wash your hands before work",
}  # fmt: skip
app.tasks(
    "notices",
    row=Row,
    prompt="Rewrite this notice as one plain sentence that begins with a verb: {notice}",
    train=[Row(notice=notice, sentence=sentence) for notice, sentence in NOTICES.items()],
)


def words(text: str) -> set[str]:
    """Return the words of a text."""
    return set(re.findall(r"[a-z]+", text.lower()))


@app.rubric
def same_meaning(answer_text: str, task: Row) -> float:
    """The sentence contains the words of the reference."""
    return len(words(answer_text) & words(task.sentence)) / len(words(task.sentence))


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the reference."""
    return task.sentence
