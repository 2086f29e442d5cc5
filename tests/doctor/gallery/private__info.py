"""The info of a step, which is in the answer of the server, has the answer."""

import re

from pydantic import BaseModel

from taskapp_kit import Private, Step, TaskApp, action

app = TaskApp("gallery")


class Row(BaseModel):
    """One riddle."""

    riddle: str
    answer: Private[str]


RIDDLES = [
    ("It has keys and opens nothing.", "a piano"),
    ("It has teeth and cannot eat.", "the comb"),
    ("The more it dries, the wetter it is.", "a towel"),
    ("It has an eye and cannot see.", "the needle"),
    ("It runs and has no legs.", "a river"),
    ("It has a neck and no head.", "the bottle"),
]


@app.environment(
    "riddles",
    tasks={"train": [{"riddle": riddle, "answer": answer} for riddle, answer in RIDDLES]},
    row=Row,
    max_steps=4,
)
class Riddles:
    """Solve the riddle."""

    def reset(self, task: Row) -> str:
        self.task = task
        return task.riddle

    @action(text=True)
    def say(self, text: str) -> Step:
        """Say the answer."""
        right = re.sub(r"\W", "", text.lower()) == self.task.answer.replace(" ", "")
        return Step(
            "right" if right else "no", reward=float(right), terminated=right, info={"expected": self.task.answer}
        )


@app.policy("gold")
def gold(task: Row) -> str:
    """Says it."""
    return task.answer
