"""Find a word with the same meaning."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, equal_text

app = TaskApp("happy-synonyms", description="Words with the same meaning.")


class Row(BaseModel):
    """One word, and the accepted synonyms."""

    word: str
    accepted: Private[list[str]]


SYNONYMS = {
    "happy": ["glad", "cheerful", "joyful"], "fast": ["quick", "rapid", "swift"], "big": ["large", "huge", "great"],
    "angry": ["furious", "cross", "mad"], "silent": ["quiet", "noiseless", "mute"], "begin": ["start", "commence", "open"],
    "clever": ["smart", "bright", "astute"],
}  # fmt: skip
app.tasks(
    "synonyms",
    row=Row,
    prompt="Give one word that means the same as '{word}'. Answer with the word only.",
    train=[Row(word=word, accepted=accepted) for word, accepted in SYNONYMS.items()],
)


@app.rubric
def is_a_synonym(answer_text: str, task: Row) -> Grade:
    """The word is one of the accepted synonyms."""
    return equal_text(answer_text, task.accepted)


@app.policy("gold")
def gold(task: Row) -> str:
    """Give the first synonym."""
    return task.accepted[0]
