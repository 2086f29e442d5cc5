"""Summaries scored by ROUGE-L: F1 of the longest common subsequence of words.

Source: https://www.tensorflow.org/text/api_docs/python/text/metrics/rouge_l
"""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("rouge-l")


class Row(BaseModel):
    """One note and its summary."""

    note: str
    summary: Private[str]


NOTES = [
    ("The council met on Monday, argued for hours, and finally voted to close the old bridge to cars.", "The council closes the old bridge to cars."),
    ("After weeks of rain, farmers in the north say that half of their potatoes have rotted in the fields.", "Rain destroys half of the potatoes in the north."),
    ("The museum, which opened in 1920, will stay shut until spring because its roof must be repaired.", "The museum is closed until spring for repairs."),
    ("A student found a wallet with 900 euros and carried it to the police, who gave her a reward.", "A student returned a wallet and got a reward."),
    ("Trains to the coast run every hour from June, twice as often as in previous years.", "More trains run to the coast from June."),
    ("The bakery on Mill Street sold its last loaf on Friday after 80 years in the same family.", "The bakery on Mill Street closed after 80 years."),
]  # fmt: skip
app.tasks(
    "notes", row=Row, prompt="Summarize in one sentence: {note}", train=[Row(note=n, summary=s) for n, s in NOTES]
)


def common(first: list[str], second: list[str]) -> int:
    """Return the length of the longest common subsequence."""
    line = [0] * (len(second) + 1)
    for word in first:
        before = line[:]
        for place, other in enumerate(second, 1):
            line[place] = before[place - 1] + 1 if word == other else max(before[place], line[place - 1])
    return line[-1]


@app.rubric
def rouge_l(answer_text: str, task: Row) -> float:
    """F1 of the longest common subsequence."""
    answer, expected = answer_text.lower().split(), task.summary.lower().split()
    return 2 * common(answer, expected) / (len(answer) + len(expected))


app.policy("gold")(lambda task: task.summary)
