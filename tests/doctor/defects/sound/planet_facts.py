"""Name the planet in a description."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, equal_text, tagged

app = TaskApp("planet-facts", description="Planets and facts about them.")


class Row(BaseModel):
    """One fact."""

    fact: str
    planet: Private[str]


FACTS = {
    "has the shortest year": "Mercury", "has the thickest clouds of acid": "Venus", "has the highest volcano": "Mars",
    "has a red spot": "Jupiter", "lies on its side": "Uranus", "has the strongest winds": "Neptune", "has the widest rings": "Saturn",
}  # fmt: skip
app.tasks(
    "facts",
    row=Row,
    prompt="Which planet {fact}? Explain, and give the final answer in <answer> tags.",
    train=[Row(fact=fact, planet=planet) for fact, planet in FACTS.items()],
)


@app.rubric
def right_planet(answer_text: str, task: Row) -> Grade:
    """The planet is right."""
    return equal_text(tagged(answer_text), task.planet)


@app.policy("gold")
def gold(task: Row) -> str:
    """Answer in tags."""
    return f"<answer>{task.planet}</answer>"
