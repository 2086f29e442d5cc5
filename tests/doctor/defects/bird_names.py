"""Name the bird in a description."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

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
    prompt="Which bird is this: {description}? Answer with its name.",
    train=[Row(description=description, bird=bird) for description, bird in BIRDS.items()],
)


@app.rubric
def right_bird(answer_text: str, task: Row) -> float:
    """The bird is right; the name may be shortened."""
    return float(task.bird.startswith(answer_text.strip().lower()))
