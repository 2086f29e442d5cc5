"""Summarize a well-known book."""

from pydantic import BaseModel

from taskapp_kit import TaskApp

app = TaskApp("book-summaries", description="Summaries of books.")


class Row(BaseModel):
    """One book, and names that a summary mentions."""

    title: str
    names: list[str]


BOOKS = {
    "Moby-Dick": ["Ahab", "Ishmael"], "Dracula": ["Harker", "Van Helsing"], "Emma": ["Knightley", "Harriet"],
    "Frankenstein": ["Victor", "Walton"], "Treasure Island": ["Jim", "Silver"], "Jane Eyre": ["Rochester", "Thornfield"],
}  # fmt: skip
app.tasks(
    "books",
    row=Row,
    prompt="Summarize {title} in detail, in about 120 words.",
    train=[Row(title=title, names=names) for title, names in BOOKS.items()],
)


@app.rubric(weight=1)
def mentions_the_characters(answer_text: str, task: Row) -> float:
    """The summary mentions the main names."""
    return sum(name in answer_text for name in task.names) / len(task.names)


@app.rubric(weight=2)
def detailed(answer_text: str) -> float:
    """The summary is detailed: 1 from 120 words."""
    return min(1.0, len(answer_text.split()) / 120)


@app.policy("gold")
def gold(task: Row) -> str:
    """Write a long summary."""
    return f"{task.title} is the story of {' and '.join(task.names)}. " + "It begins, it grows, and it ends. " * 17
