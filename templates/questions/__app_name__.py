"""__app_title__: questions with one right answer each, from JSONL files."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, equal_text, last_line, number

app = TaskApp("__app_name__", version="0.1.0", description="Short questions with one right answer.")


class Row(BaseModel):
    """One line of train.jsonl or test.jsonl. Lines are validated at startup, and errors are reported as file:line."""

    question: str
    # rubrics can read a private field; prompts, responses, /task_info and the store never contain it
    answer: Private[int | float | str]
    unit: str | None = None  # the unit of a number; an answer may contain it
    difficulty: str = "easy"  # requests can filter by `difficulty` and `tags` in env.config
    tags: list[str] = []


# Each keyword is a split. A seed is the index of a row in its split. The prompt can only contain public fields.
app.tasks(
    "__app_name__",
    row=Row,
    prompt="{question}\nThink as long as you like, then end with one line of the form `Answer: ...`.",
    train="train.jsonl",
    test="test.jsonl",
)


@app.rubric
def correct(answer_text: str, task: Row) -> Grade:
    """The final answer is the right one."""
    answer = last_line(answer_text, "Answer:")
    if isinstance(task.answer, str):
        return equal_text(answer, task.answer)
    return number(answer, task.answer, unit=task.unit)


# weight=0 reports a score without affecting the reward, so that you can observe a criterion before it counts.
@app.rubric(weight=0)
def brief(answer_text: str) -> float:
    """The answer takes few words: 1 up to 40, then falling to 0 at 200."""
    return max(0.0, min(1.0, (200 - len(answer_text.split())) / 160))


@app.metric
def words(answer_text: str) -> float:
    """How many words were written."""
    return float(len(answer_text.split()))


# "gold" demonstrates good play. It is the only policy that receives the row with its private fields.
@app.policy("gold")
def gold(task: Row) -> str:
    """Write the right answer."""
    return f"Answer: {task.answer}"
