"""Judges of every kind: a number, choices, samples, a rubric file, a reward model, and one that ranks groups."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp, Trajectory

app = TaskApp("judged", version="0.3.0", description="Explanations, judged.")


class Row(BaseModel):
    """A question, and what the judge may compare with."""

    question: str
    reference: Private[str]


app.tasks(
    "judged",
    row=Row,
    prompt="{question}",
    train=[Row(question=f"Why is {thing} wet?", reference=f"{thing} is wet for a reason.") for thing in "abcdefghij"],
)


@app.judge(weight=1)
def true(answer_text: str, task: Row) -> dict[str, str] | None:
    """Does the answer say the same as the reference?"""
    if answer_text == "skip":
        return None
    if answer_text == "raise":
        raise RuntimeError("secret words of the author")
    return {"question": task.question, "reference": task.reference, "answer": answer_text}


@app.judge(weight=0, samples=3, combine="median", choices=["confusing", "plain", "vivid"])
def style(answer_text: str) -> str:
    """How well could a child of ten follow this explanation?"""
    return answer_text


@app.judge(weight=0.5, scale=(0, 10), form="text", temperature=0)
def length(trajectory: Trajectory) -> str:
    """Is the transcript of a fitting length?"""
    return trajectory.transcript()


@app.judge(kind="reward_model", scale=(-10, 10), weight=0, model="rewarder")
def preferred(answer_text: str) -> str:
    """What the reward model says."""
    return answer_text


@app.judge(group=True, samples=2)
def best(trajectories: list[Trajectory]) -> list[str]:
    """Which explanation is best?"""
    return [trajectory.answer_text for trajectory in trajectories]


@app.rubric(weight=0.25)
def short(answer_text: str) -> float:
    """Few words."""
    return 1 / (1 + len(answer_text.split()))


app.load_rubric("judged_rubric.toml")
