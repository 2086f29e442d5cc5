"""Sort the guests of a dinner by name."""

import random

from pydantic import BaseModel

from taskapp_kit import TaskApp

app = TaskApp("sorted-guests", description="Names in alphabetical order.")
NAMES = ["Lena", "Ada", "Tom", "Iris", "Max", "Cleo", "Omar", "Fritz", "Zoe", "Bea"]


class Row(BaseModel):
    """The guests of one dinner."""

    guests: list[str]


app.tasks(
    "guests",
    row=Row,
    prompt=lambda row: f"Sort these guests by name, one in each line: {', '.join(row.guests)}",
    train=[Row(guests=random.Random(seed).sample(NAMES, 5)) for seed in range(8)],
)


@app.rubric
def in_order(answer_text: str, task: Row) -> float:
    """The lines are the guests in the order of the alphabet."""
    return float([line.strip() for line in answer_text.strip().splitlines()] == sorted(task.guests))


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the sorted names."""
    return "\n".join(sorted(task.guests))
