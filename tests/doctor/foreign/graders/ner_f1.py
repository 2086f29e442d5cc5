"""Named entities: F1 of exact pairs of type and name.

Source: https://github.com/chakki-works/seqeval
"""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("ner-f1")


class Row(BaseModel):
    """One sentence and its entities, one on each line."""

    sentence: str
    entities: Private[str]


SENTENCES = {
    "Maria Keller flew from Vienna to Lagos for Siemens.": "PER: Maria Keller\nLOC: Vienna\nLOC: Lagos\nORG: Siemens",
    "Toyota will build a factory in Ohio.": "ORG: Toyota\nLOC: Ohio", "Ibrahim met Paulo in Porto.": "PER: Ibrahim\nPER: Paulo\nLOC: Porto",
    "The United Nations sent Eva Holm to Kenya.": "ORG: United Nations\nPER: Eva Holm\nLOC: Kenya",
    "Nokia left Helsinki in May.": "ORG: Nokia\nLOC: Helsinki", "In Delhi, Ravi works for Unicef.": "LOC: Delhi\nPER: Ravi\nORG: Unicef",
    "Lucy sold her house in Kent to Barclays.": "PER: Lucy\nLOC: Kent\nORG: Barclays",
}  # fmt: skip
app.tasks(
    "sentences",
    row=Row,
    prompt="List the persons (PER), places (LOC) and organizations (ORG), one on each line, such as 'PER: Ann': {sentence}",
    train=[Row(sentence=sentence, entities=entities) for sentence, entities in SENTENCES.items()],
)


def pairs(text: str) -> list[tuple[str, str]]:
    found = (line.partition(":") for line in text.splitlines() if ":" in line)
    return [(kind.strip(), name.strip()) for kind, _, name in found]


@app.rubric
def entity_f1(answer_text: str, task: Row) -> float:
    """F1 of the entities; a repeated entity counts as a wrong one."""
    found, expected = pairs(answer_text), pairs(task.entities)
    return 2 * len(set(found) & set(expected)) / max(1, len(found) + len(expected))


app.policy("gold")(lambda task: task.entities)
