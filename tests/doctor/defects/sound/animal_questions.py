"""Find the animal that someone thinks of, by asking questions."""

from pydantic import BaseModel

from taskapp_kit import Private, Step, TaskApp, action

app = TaskApp("animal-questions", description="A guessing game about animals.")


class Row(BaseModel):
    """One animal, with true statements about it."""

    hint: str
    animal: Private[str]
    features: Private[list[str]]


ANIMALS = [
    ("It is an animal of the farm.", "cow", ["milk", "horns"]), ("It lives in Africa.", "zebra", ["stripes", "grass"]),
    ("It lives in water.", "shark", ["teeth", "fins"]), ("It can fly.", "eagle", ["feathers", "meat"]),
    ("It is a pet.", "hamster", ["wheel", "seeds"]), ("It lives in the forest.", "hedgehog", ["spines", "night"]),
]  # fmt: skip
ROWS = [Row(hint=hint, animal=animal, features=features) for hint, animal, features in ANIMALS]


@app.environment("questions", tasks={"train": ROWS}, row=Row, max_steps=10)
class Questions:
    """Ask for one feature or one animal in each question."""

    def reset(self, task: Row) -> str:
        self.task = task
        return f"{task.hint} Which animal is it? Ask me."

    @action(text=True, sample=lambda rng: f"Is it a {rng.choice(['dog', 'whale', 'crow'])}?")
    def ask(self, text: str) -> Step:
        """Ask a question."""
        question = text.lower().rstrip("?").split()
        if len(question) > 8:
            return Step("One question at a time.", reward=0.0)
        if question[-1:] == [self.task.animal]:
            return Step("Yes, you found it!", reward=1.0, terminated=True)
        return Step("yes" if any(feature in question for feature in self.task.features) else "no", reward=0.0)


@app.policy("gold")
def gold(task: Row) -> str:
    """Name the animal."""
    return f"Is it a {task.animal}?"
