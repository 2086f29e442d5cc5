"""Trivia: exact match with one of the aliases after case, articles and punctuation are removed.

Source: https://github.com/mandarjoshi90/triviaqa/blob/master/evaluation/triviaqa_evaluation.py
"""

import re
import string

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("triviaqa-aliases")


class Row(BaseModel):
    """One question and the accepted answers."""

    question: str
    aliases: Private[list[str]]


QUESTIONS = {
    "Which river flows through Cairo?": ["Nile", "River Nile", "Nile River"], "Who painted Guernica?": ["Pablo Picasso", "Picasso"],
    "Which country has Reykjavik as its capital?": ["Iceland", "Republic of Iceland"],
    "Which city hosted the Olympic Games of 2012?": ["London", "London, England"],
    "Which band recorded Abbey Road?": ["The Beatles", "Beatles"], "Which element has the symbol Fe?": ["Iron", "Ferrum"],
    "What is the largest desert of Asia?": ["Gobi", "Gobi Desert"], "Who discovered penicillin?": ["Alexander Fleming", "Fleming"],
}  # fmt: skip
app.tasks(
    "questions",
    row=Row,
    prompt="{question} Answer with a name.",
    train=[Row(question=question, aliases=aliases) for question, aliases in QUESTIONS.items()],
)


def normalized(text: str) -> str:
    spaced = "".join(
        " " if character in string.punctuation else character for character in text.lower().replace("_", " ")
    )
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", spaced).split())


@app.rubric
def exact_match(answer_text: str, task: Row) -> float:
    """The answer is one of the aliases."""
    return float(normalized(answer_text) in {normalized(alias) for alias in task.aliases})


app.policy("gold")(lambda task: task.aliases[0])
