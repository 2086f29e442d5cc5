"""Instructions that a program can verify: the share of the instructions that the reply follows.

Source: https://arxiv.org/abs/2311.07911
"""

import re

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("ifeval-constraints")


class Row(BaseModel):
    """One request with three instructions, and a reply that follows them."""

    topic: str
    keyword: str
    most_words: int
    ending: str
    reply: Private[str]


REQUESTS = [
    ("a rainy day", "umbrella", 20, "The end.", "Rain fell, and my umbrella kept me dry. The end."),
    ("your breakfast", "butter", 15, "Yum!", "I had bread with butter and honey. Yum!"),
    ("a lost key", "pocket", 18, "Lucky me.", "I searched every pocket and found it in the last one. Lucky me."),
    ("a long journey", "station", 20, "Good night.", "After nine hours we reached the station, tired but happy. Good night."),
    ("a new neighbor", "garden", 16, "Welcome!", "She greeted us from her garden with a basket of plums. Welcome!"),
    ("a noisy bird", "window", 14, "Silence.", "It sang at my window until noon. Silence."),
]  # fmt: skip
app.tasks(
    "requests",
    row=Row,
    prompt="Write about {topic} in at most {most_words} words. Use the word {keyword}. End with exactly: {ending}",
    train=[Row(**dict(zip(Row.model_fields, request, strict=True))) for request in REQUESTS],
)


@app.rubric
def followed(answer_text: str, task: Row) -> float:
    """The share of the instructions that are followed; an empty reply follows none."""
    short = len(answer_text.split()) <= task.most_words
    keyword = re.search(rf"\b{task.keyword}\b", answer_text, re.IGNORECASE) is not None
    return sum([short, keyword, answer_text.strip().endswith(task.ending)]) / 3 if answer_text.strip() else 0.0


app.policy("gold")(lambda task: task.reply)
