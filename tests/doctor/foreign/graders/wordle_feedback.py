"""Wordle: six guesses with G, Y and X for each letter; reward for the word and for few guesses, or for right letters.

Source: https://github.com/PrimeIntellect-ai/verifiers/blob/main/environments/wordle/wordle.py
"""

from pydantic import BaseModel

from taskapp_kit import InvalidAction, Private, Step, TaskApp, Trajectory, action

app = TaskApp("wordle-feedback")


class Row(BaseModel):
    """One secret word."""

    hint: str
    word: Private[str]


WORDS = {
    "a fruit": "apple",
    "a vehicle": "train",
    "a color": "green",
    "an animal": "tiger",
    "a drink": "water",
    "a tool": "spoon",
}


@app.environment(
    "wordle", tasks={"train": [Row(hint=hint, word=word) for hint, word in WORDS.items()]}, row=Row, max_steps=6
)
class Wordle:
    """Guess a word of five letters. G: right place, Y: another place, X: not in the word."""

    def reset(self, task: Row) -> str:
        self.word, self.marks = task.word, "XXXXX"
        return f"Guess {task.hint} with five letters."

    @action(text=True, sample=lambda rng: "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=5)))
    def guess(self, text: str) -> Step:
        """Guess a word."""
        word = text.strip().lower()
        if len(word) != 5 or not word.isalpha():
            raise InvalidAction("The guess must have five letters.")
        self.marks = "".join(
            "G" if g == w else "Y" if g in self.word else "X" for g, w in zip(word, self.word, strict=True)
        )
        return Step(self.marks, terminated=self.marks == "GGGGG")

    def final_state(self) -> dict[str, str]:
        return {"marks": self.marks}


@app.rubric
def solved(trajectory: Trajectory) -> float:
    """Half for the word and half divided by the number of guesses; otherwise 0.1 for each G and 0.05 for each Y at the end."""
    marks = str(trajectory.final_state["marks"])
    found = 0.5 + 0.5 / max(1, len(trajectory.actions("guess")))
    return found if marks == "GGGGG" else 0.1 * marks.count("G") + 0.05 * marks.count("Y")


app.policy("gold")(lambda task: task.word)
