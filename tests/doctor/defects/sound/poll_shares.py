"""Read the share of a party from a poll."""

import random

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, number

app = TaskApp("poll-shares", description="Shares of votes.")


class Row(BaseModel):
    """One poll."""

    poll: str
    share: Private[float]


def poll(seed: int) -> Row:
    """Return a poll of three parties."""
    votes = random.Random(seed).sample(range(120, 900), 3)
    text = ", ".join(f"{party} {count}" for party, count in zip(("Blue", "Green", "Red"), votes, strict=True))
    return Row(poll=text, share=round(100 * votes[1] / sum(votes), 1))


app.tasks(
    "polls",
    row=Row,
    prompt="Votes: {poll}. Which share did Green get, in percent with one decimal? Answer with a number only.",
    train=[poll(seed) for seed in range(8)],
)


@app.rubric
def right_share(answer_text: str, task: Row) -> Grade:
    """The share is right."""
    return number(answer_text, task.share, absolute_tolerance=0.06)
