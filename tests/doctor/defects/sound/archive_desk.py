"""Search an archive and answer a question about it."""

from pydantic import BaseModel

from taskapp_kit import Private, Step, TaskApp, Trajectory, action

app = TaskApp("archive-desk", description="Questions about an archive.")
FILES = {
    "bridge": "The bridge was opened in 1931 by mayor Holt.", "school": "The school burned down in 1904.",
    "mill": "The mill was sold to the Reed family in 1877.", "tower": "The tower is 41 meters high.",
    "market": "The market has been held on Fridays since 1650.", "harbor": "The harbor froze in the winter of 1947.",
}  # fmt: skip


class Row(BaseModel):
    """One question."""

    question: str
    answer: Private[str]
    file: Private[str]


QUESTIONS = [
    ("Who opened the bridge?", "Holt", "bridge"), ("When did the school burn down?", "1904", "school"),
    ("Which family bought the mill?", "Reed", "mill"), ("How many meters high is the tower?", "41", "tower"),
    ("On which day is the market?", "Friday", "market"), ("When did the harbor freeze?", "1947", "harbor"),
]  # fmt: skip
ROWS = [Row(question=question, answer=answer, file=file) for question, answer, file in QUESTIONS]


@app.environment(
    "archive",
    tasks={"train": ROWS},
    row=Row,
    max_steps=8,
    accept={"private": "The task is to find the answer in the text."},
)
class Archive:
    """Search before you answer."""

    def reset(self, task: Row) -> str:
        return task.question

    @action(sample=lambda rng: {"word": rng.choice(["bridge", "mill", "mayor", "1904"])})
    def search(self, word: str) -> str:
        """Find the files that contain a word."""
        return " ".join(text for text in FILES.values() if word.lower() in text.lower()) or "nothing found"

    @action(sample=lambda rng: {"text": rng.choice(["Holt", "1904", "Reed", "12"])})
    def answer(self, text: str) -> Step:
        """Answer with one word or number."""
        return Step("noted", terminated=True)


@app.rubric(weight=1)
def researched(trajectory: Trajectory, task: Row) -> float:
    """The right answer was found in the archive."""
    found = any(task.answer in str(step.observation) for step in trajectory.actions("search"))
    return float(found) * right(trajectory, task)


@app.rubric(weight=1)
def right(trajectory: Trajectory, task: Row) -> float:
    """The answer is right."""
    return float(
        any(step.args["text"].strip(".") == task.answer for step in trajectory.actions("answer") if not step.refused)
    )


@app.policy("gold")
def gold(observation: str, task: Row) -> dict[str, dict[str, str]]:
    """Search twice, then answer."""
    if observation == task.question:
        return {"search": {"word": task.file}}
    return {"answer": {"text": task.answer}} if observation == "nothing found" else {"search": {"word": "unknown"}}
