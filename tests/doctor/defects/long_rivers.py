"""Name the river on which a city lies."""

import re

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("long-rivers", description="Rivers of cities.")


class Row(BaseModel):
    """One city."""

    city: str
    river: Private[str]


RIVERS = {
    "Cairo": "Nile", "Vienna": "Danube", "London": "Thames", "Paris": "Seine", "Baghdad": "Tigris", "Cologne": "Rhine",
    "Warsaw": "Vistula", "Rome": "Tiber",
}  # fmt: skip
app.tasks(
    "rivers",
    row=Row,
    prompt="On which river does {city} lie? Think inside <think> tags, then answer inside <answer> tags.",
    train=[Row(city=city, river=river) for city, river in RIVERS.items()],
)


@app.rubric
def right_river(answer_text: str, task: Row) -> float:
    """The river is right."""
    answers = re.findall(r"<answer>(.*?)</answer>", answer_text, re.DOTALL)
    return float(bool(answers) and answers[-1].strip().lower() == task.river.lower())


@app.policy("gold")
def gold(task: Row) -> str:
    """Answer in tags."""
    return f"<think>The city is well known.</think><answer>{task.river}</answer>"
