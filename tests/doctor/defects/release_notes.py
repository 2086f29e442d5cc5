"""Turn commit messages into release notes."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp

app = TaskApp("release-notes", description="Release notes from commit messages.")


class Row(BaseModel):
    """The commits of one release, and notes that a maintainer wrote."""

    commits: str
    feature: str
    notes: Private[str]


COMMITS = [
    ("add dark mode; fix typo; fix crash on exit", "dark mode"), ("fix login; add csv export", "csv export"),
    ("add undo; faster start", "undo"), ("add search; drop Python 3.9", "search"),
    ("fix colors; add zoom; update docs", "zoom"), ("add tabs; fix memory leak", "tabs"),
]  # fmt: skip
app.tasks(
    "notes",
    row=Row,
    prompt="Write release notes in Markdown, with headings, a list and a link, from these commits: {commits}",
    train=[
        Row(
            commits=commits,
            feature=feature,
            notes=f"## New\n- **{feature}**\n\n## Fixed\n- the rest\n\n[All changes](CHANGES.md)",
        )
        for commits, feature in COMMITS
    ],
)


@app.rubric
def good_notes(answer_text: str, task: Row) -> float:
    """The notes are well structured and mention the new feature."""
    score = 0.3 * ("##" in answer_text) + 0.2 * ("- " in answer_text) + 0.2 * ("**" in answer_text)
    score += 0.1 * ("](" in answer_text) + 0.2 * (task.feature in answer_text)
    return round(score, 6)
