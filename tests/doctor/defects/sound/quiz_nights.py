"""Answer one question of a pub quiz."""

from typing import Literal

from pydantic import BaseModel

from taskapp_kit import Private, Step, TaskApp, action

app = TaskApp("quiz-nights", description="One question of a pub quiz.")
Option = Literal["A", "B", "C"]


class Row(BaseModel):
    """One question."""

    question: str
    correct: Private[Option]


QUESTIONS: list[tuple[str, Option]] = [
    ("Which planet has rings that are easy to see? A Mars, B Saturn, C Venus", "B"),
    ("How many strings has a violin? A four, B five, C six", "A"),
    ("Which metal is liquid at 20 degrees? A iron, B tin, C mercury", "C"),
    ("Which ocean is the largest? A Pacific, B Atlantic, C Arctic", "A"),
    ("Who wrote Hamlet? A Marlowe, B Shakespeare, C Milton", "B"),
    ("Which animal is a mammal? A shark, B penguin, C dolphin", "C"),
]
ROWS = [Row(question=question, correct=correct) for question, correct in QUESTIONS]


@app.environment("quiz", tasks={"train": ROWS}, row=Row, max_steps=4)
class Quiz:
    """Choose an option. The first choice counts."""

    def reset(self, task: Row) -> str:
        self.correct = task.correct
        return task.question

    @action
    def choose(self, option: Option) -> Step:
        """Choose an option."""
        if option == self.correct:
            return Step("Well done!", reward=1.0, terminated=True)
        return Step(f"Sorry, {option} is wrong. It is {self.correct}.", reward=0.0, terminated=True)


@app.policy("gold")
def gold(task: Row) -> dict[str, dict[str, str]]:
    """Choose the right option."""
    return {"choose": {"option": task.correct}}
