"""Solve a riddle, with hints if necessary."""

from pydantic import BaseModel

from taskapp_kit import Private, Step, TaskApp, action

app = TaskApp("riddle-hints", description="Riddles with hints.")


class Row(BaseModel):
    """One riddle."""

    riddle: str
    word: Private[str]


RIDDLES = {
    "It has hands and cannot clap.": "clock", "It has teeth and cannot bite.": "comb", "It has an eye and cannot see.": "needle",
    "It gets wet while it dries.": "towel", "It runs and has no legs.": "river", "It has keys and opens no lock.": "piano",
}  # fmt: skip
ROWS = [Row(riddle=riddle, word=word) for riddle, word in RIDDLES.items()]


@app.environment("riddle", tasks={"train": ROWS}, row=Row, max_steps=12, accept={"private": "Hints reveal the word."})
class Riddle:
    """Each hint reveals one more character of the word, and costs a quarter."""

    def reset(self, task: Row) -> str:
        self.word, self.hints = task.word, 0
        return task.riddle

    @action(noop={})
    def hint(self) -> str:
        """Ask for a hint."""
        self.hints += 1
        return f"The word begins with {self.word[: self.hints]}"

    @action(sample=lambda rng: {"word": rng.choice(["moon", "shoe", "bottle"])})
    def guess(self, word: str) -> Step:
        """Guess the word, which ends the game."""
        right = word.strip().lower() == self.word
        return Step("right" if right else "wrong", reward=max(0.0, 1.0 - 0.25 * self.hints) * right, terminated=True)


@app.policy("gold")
def gold(task: Row) -> dict[str, dict[str, str]]:
    """Guess the word."""
    return {"guess": {"word": task.word}}
