"""__app_title__: questions with one right answer each, from JSONL files."""

from pydantic import BaseModel

from taskapp_kit import Private, TaskApp
from taskapp_kit.grading import Grade, equal_text

app = TaskApp("__app_name__", version="0.1.0", description="Short questions with one right answer.")


class Row(BaseModel):
    """One line of train.jsonl or test.jsonl, checked when the app starts: a bad line is reported as file:line."""

    question: str
    answer: Private[str]  # rubrics may read it; it is in no prompt, no response, no /task_info and no store
    difficulty: str = "easy"  # a request may filter by `difficulty` and `tags` in env.config
    tags: list[str] = []


# Each keyword is a split; a seed is the number of a row in its split. The prompt may use public fields only.
app.tasks(
    "__app_name__",
    row=Row,
    prompt="{question}\nThink as long as you like, then end with one line of the form `Answer: ...`.",
    train="train.jsonl",
    test="test.jsonl",
)


def final_answer(text: str) -> str | None:
    """Return the text after the last "Answer:", None without one. Only that line is read."""
    for line in reversed(text.splitlines()):
        label, colon, rest = line.strip().strip("*`").partition(":")
        if colon and label.strip().lower() == "answer":
            return rest.strip(" *`")
    return None


@app.rubric
def correct(answer_text: str, task: Row) -> Grade:
    """The final answer is the right one."""
    return equal_text(final_answer(answer_text) or "", task.answer)


# weight=0 measures without paying: a criterion to observe before you decide whether it should count.
@app.rubric(weight=0)
def brief(answer_text: str) -> float:
    """The answer takes few words: 1 up to 40, then falling to 0 at 200."""
    return max(0.0, min(1.0, (200 - len(answer_text.split())) / 160))


@app.metric
def words(answer_text: str) -> float:
    """How many words were written."""
    return float(len(answer_text.split()))


# "gold" is the example of good play: the one policy that receives the row, private fields included.
@app.policy("gold")
def gold(task: Row) -> str:
    """Writes the right answer."""
    return f"Answer: {task.answer}"
