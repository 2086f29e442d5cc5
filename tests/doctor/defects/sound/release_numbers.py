"""Find the version number that follows from a description of a release."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, equal_text

app = TaskApp("release-numbers", description="Semantic versioning.")


class Row(BaseModel):
    """One release."""

    current: str
    change: str
    following: Private[str]


RELEASES = [
    ("1.9.3", "a bug fix", "1.9.4"), ("1.9.3", "a new feature", "1.10.0"), ("0.11.2", "a breaking change", "1.0.0"),
    ("2.0.9", "a bug fix", "2.0.10"), ("11.0.1", "a new feature", "11.1.0"), ("3.14.0", "a breaking change", "4.0.0"),
]  # fmt: skip
app.tasks(
    "releases",
    row=Row,
    prompt="Version {current} is out. The next release contains {change}. Which version number does it get? Answer with the number only.",
    train=[Row(current=current, change=change, following=following) for current, change, following in RELEASES],
)


@app.rubric
def right_version(answer_text: str, task: Row) -> Grade:
    """The version is right; spaces, quotes and other characters around it do not matter."""
    return equal_text(answer_text, task.following)
