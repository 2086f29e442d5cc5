"""Name the river on which a city lies."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, equal_text, tagged

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
def right_river(answer_text: str, task: Row) -> Grade:
    """The river is right."""
    return equal_text(tagged(answer_text), task.river)


@app.policy("gold")
def gold(task: Row) -> str:
    """Answer in tags."""
    return f"<think>The city is well known.</think><answer>{task.river}</answer>"
