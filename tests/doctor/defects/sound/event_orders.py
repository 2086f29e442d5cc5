"""Sort events by date."""

import random

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, same_sequence

app = TaskApp("event-orders", description="Historical events in order.")
EVENTS = [
    "Battle of Hastings", "Magna Carta", "Fall of Constantinople", "French Revolution", "Battle of Waterloo",
    "First World War", "Moon landing", "Fall of the Berlin Wall",
]  # fmt: skip


class Row(BaseModel):
    """Four events."""

    shuffled: str
    ordered: Private[str]


def four_events(seed: int) -> Row:
    """Return four events in a random order."""
    chosen = random.Random(seed).sample(EVENTS, 4)
    return Row(shuffled=", ".join(chosen), ordered=", ".join(sorted(chosen, key=EVENTS.index)))


app.tasks(
    "events",
    row=Row,
    prompt="Sort from the earliest to the latest, separated by commas: {shuffled}",
    train=[four_events(seed) for seed in range(8)],
)


@app.rubric
def right_order(answer_text: str, task: Row) -> Grade:
    """The events are in order."""
    return same_sequence(answer_text, task.ordered.split(", "))
