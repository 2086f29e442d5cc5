"""Translations that earn 1 if their BLEU (up to 4-grams, with a brevity penalty, smoothed) is at least 0.5.

Source: https://github.com/mjpost/sacrebleu
"""

import math
from collections import Counter

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("bleu-threshold")


class Row(BaseModel):
    """One sentence and its translation."""

    german: str
    english: Private[str]


SENTENCES = {
    "Der Hund schläft unter dem Tisch.": "The dog is sleeping under the table.",
    "Morgen fahren wir mit dem Zug nach Rom.": "Tomorrow we will take the train to Rome.",
    "Sie hat drei Brüder und eine Schwester.": "She has three brothers and one sister.",
    "Der Laden ist am Sonntag geschlossen.": "The shop is closed on Sunday.",
    "Ich habe meinen Schlüssel wieder verloren.": "I have lost my key again.",
    "Das Buch kostet weniger als zehn Euro.": "The book costs less than ten euros.",
}  # fmt: skip
app.tasks("sentences", row=Row, prompt="Translate into English: {german}", train=[Row(german=g, english=e) for g, e in SENTENCES.items()])  # fmt: skip


def grams(words: list[str], size: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[start:] for start in range(size)), strict=False))


@app.rubric
def good_translation(answer_text: str, task: Row) -> float:
    """BLEU against the one reference reaches the threshold."""
    answer, expected = answer_text.split(), task.english.split()
    if not answer:
        return 0.0
    shares = [((grams(answer, n) & grams(expected, n)).total() + (n > 1)) / (max(0, len(answer) - n + 1) + (n > 1)) for n in range(1, 5)]  # fmt: skip
    brevity = min(1.0, math.exp(1 - len(expected) / len(answer)))
    return float(min(shares) > 0 and brevity * math.prod(shares) ** 0.25 >= 0.5)


app.policy("gold")(lambda task: task.english)
