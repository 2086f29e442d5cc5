"""Name the bird in a description."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, equal_text

app = TaskApp("bird-names", description="Birds and their descriptions.")


class Row(BaseModel):
    """One bird."""

    description: str
    bird: Private[str]


BIRDS = {
    "black and white, swims and does not fly, lives in the south": "penguin",
    "pink, stands on one leg in shallow water": "flamingo",
    "hunts mice at night and turns its head far": "owl",
    "lays its eggs in the nests of others": "cuckoo",
    "the largest bird, runs fast": "ostrich",
    "hammers holes into trees": "woodpecker",
    "has a tail with many eyes": "peacock",
}
app.tasks(
    "birds",
    row=Row,
    prompt="Which bird is this: {description}? Answer with its name only.",
    train=[Row(description=description, bird=bird) for description, bird in BIRDS.items()],
)


@app.rubric
def right_bird(answer_text: str, task: Row) -> Grade:
    """The bird is right."""
    return equal_text(answer_text, task.bird)
