"""Read a timetable and find the platform of a train."""

import random

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, number

app = TaskApp("train-platforms", description="Reading a timetable.")


class Row(BaseModel):
    """One timetable, and a train in it."""

    timetable: str
    train: str
    platform: Private[int]


def timetable(seed: int) -> Row:
    """Return a timetable of five trains."""
    rng = random.Random(seed)
    trains = rng.sample(["Berlin", "Hamburg", "Prague", "Vienna", "Zurich", "Basel"], 5)
    platforms = rng.sample(range(1, 15), 5)
    lines = [f"{train}: platform {platform}" for train, platform in zip(trains, platforms, strict=True)]
    return Row(timetable="\n".join(lines), train=trains[2], platform=platforms[2])


app.tasks(
    "platforms",
    row=Row,
    accept={"private": "The task is to find the answer in the text."},
    prompt="{timetable}\n\nFrom which platform does the train to {train} leave? Answer with a number.",
    train=[timetable(seed) for seed in range(10)],
)


@app.rubric
def right_platform(answer_text: str, task: Row) -> Grade:
    """The platform is right."""
    return number(answer_text, task.platform)
