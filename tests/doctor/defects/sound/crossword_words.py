"""Solve a clue of a crossword."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, equal_text

app = TaskApp("crossword-words", description="Clues of a crossword.")


class Row(BaseModel):
    """One clue."""

    clue: str
    word: Private[str]


CLUES = {
    "Frozen water (3)": "ice", "Opposite of west (4)": "east", "It tells the time (5)": "clock", "King of animals (4)": "lion",
    "A baby cat (6)": "kitten", "It grows on your head (4)": "hair", "Bees make it (5)": "honey",
}  # fmt: skip
app.tasks(
    "clues",
    row=Row,
    prompt="{clue} Answer with the word only.",
    train=[Row(clue=clue, word=word) for clue, word in CLUES.items()],
)


@app.rubric
def solved(answer_text: str, task: Row) -> Grade:
    """The word solves the clue."""
    return equal_text(answer_text, task.word)


@app.policy("gold")
def gold(task: Row) -> str:
    """Write the word."""
    return task.word
