"""Translations scored by chrF: an F-score (beta 2) of character n-grams up to 6.

Source: https://huggingface.co/spaces/evaluate-metric/chrf/blob/main/README.md
"""

from collections import Counter
from statistics import fmean

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("chrf-translation")


class Row(BaseModel):
    """One sentence and its translation."""

    spanish: str
    english: Private[str]


SENTENCES = {
    "El gato negro duerme.": "The black cat is asleep.", "Mañana lloverá en Madrid.": "It will rain in Madrid tomorrow.",
    "No tengo bastante dinero.": "I do not have enough money.", "La puerta está abierta.": "The door is open.",
    "Mi abuela hornea pan.": "My grandmother bakes bread.", "Llegaron demasiado tarde.": "They arrived too late.",
}  # fmt: skip
app.tasks(
    "sentences",
    row=Row,
    prompt="Translate into English. Write only the translation: {spanish}",
    train=[Row(spanish=spanish, english=english) for spanish, english in SENTENCES.items()],
)


def grams(text: str, size: int) -> Counter[str]:
    characters = "".join(text.split())
    return Counter(characters[start : start + size] for start in range(len(characters) - size + 1))


@app.rubric
def chrf(answer_text: str, task: Row) -> float:
    """Five times the product of precision and recall, divided by four times the precision plus the recall."""
    sizes = [(grams(answer_text, size), grams(task.english, size)) for size in range(1, 7)]
    precision = fmean((answer & expected).total() / max(1, answer.total()) for answer, expected in sizes)
    recall = fmean((answer & expected).total() / max(1, expected.total()) for answer, expected in sizes)
    return 5 * precision * recall / (4 * precision + recall) if precision else 0.0


app.policy("gold")(lambda task: task.english)
