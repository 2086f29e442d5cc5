"""Answers from a passage, scored by the overlap of words (F1) after articles and punctuation are removed.

Source: https://huggingface.co/spaces/evaluate-metric/squad/blame/main/compute_score.py
"""

import re
import string
from collections import Counter

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("squad-f1")
PASSAGE = (
    "The bridge was built by Ada Novak in 1887. It is 340 meters long and crosses the river Lune at Old Harbor. "
    "In 1944 a flood destroyed the northern arch, which the city council replaced with steel."
)


class Row(BaseModel):
    """One question."""

    question: str
    answer: Private[str]


QUESTIONS = {
    "Who built the bridge?": "Ada Novak", "When was it built?": "1887", "How long is it?": "340 meters",
    "Which river does it cross?": "the river Lune", "What destroyed an arch?": "a flood", "Where is it?": "Old Harbor",
    "Who replaced the arch?": "the city council",
}  # fmt: skip
app.tasks("questions", row=Row, prompt=PASSAGE + " {question} Answer with words of the passage.",
          train=[Row(question=question, answer=answer) for question, answer in QUESTIONS.items()])  # fmt: skip


def words(text: str) -> Counter[str]:
    bare = "".join(character for character in text.lower() if character not in string.punctuation)
    return Counter(re.sub(r"\b(a|an|the)\b", " ", bare).split())


@app.rubric
def f1(answer_text: str, task: Row) -> float:
    """The harmonic mean of precision and recall of words."""
    answer, expected = words(answer_text), words(task.answer)
    return 2 * (answer & expected).total() / max(1, answer.total() + expected.total())


app.policy("gold")(lambda task: task.answer)
