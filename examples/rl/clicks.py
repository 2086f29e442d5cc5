"""One click in a real browser, for the model `tiny`: the kind `admin/switch` in the bundled app `web`, on the easy level.

taskapp serve examples/rl/clicks.py
taskapp train --local --config examples/rl/learn_clicks.toml

A page of the site has three buttons, each with the name of a machine such as "Pump 4". The goal names the machine to
stop. The page, the browser and the scoring are the same as in `web`. Two things are smaller, because `tiny` reads
bytes and knows only a few dozen words: the prompt (three words instead of 953 bytes of actions with schemas) and the
answer (the button's name, or its number in brackets, instead of a call). Each page has three machines of at most
three types. A random button on the page is right in 1 of 3 cases, and a random name in 1 of 72.

The seed is the task's number. The splits `train` and `test` are the same as in `web` and have no task in common. The
example needs the extra `web`, Chromium, and a checkout of the repository.
"""

from environments.web.app import Web
from environments.web.tasks import TEST, TRAIN, WebTask
from environments.web.view import View
from taskapp_kit import Step, TaskApp, action
from taskapp_kit.grading import equal_text

app = TaskApp("clicks", version="1.0.0", description="Click the button that the goal names.")


def task(seed: int) -> WebTask:
    """Return the task of a seed."""
    return WebTask(kind="admin/switch", difficulty="easy", number=seed, feasible=True, tags=["admin/switch"])


@app.environment(
    "clicks", splits={"train": range(TRAIN), "test": range(TRAIN, TRAIN + TEST)}, max_steps=1, prompt="Which thing?"
)
class Clicks(Web):
    """Click the button that the goal names, on a page in a browser."""

    def __init__(self) -> None:
        super().__init__()

    def actions(self) -> list[str]:
        """One: the name of a button."""
        return ["press"]

    def reset(self, seed: int) -> str:
        """Return the goal, and the page."""
        self.shown = super().reset(task(seed))
        return self.shown

    @action(text=True, noop={"name": ""})
    def press(self, name: str) -> Step:
        """Click the button of that name."""
        buttons = View(self.shown).all("button")
        found = [one.bid for one in buttons if equal_text(name, (one.name, f"[{one.bid}]"))]
        if not found:
            return Step("There is no such button.", terminated=True)
        page = self.click(found[0])
        solved = self.problem.site.record() == self.problem.expected
        return Step(page.observation, reward=float(solved), terminated=True)


@app.policy("gold")
def gold(observation: str) -> str:
    """The name in the goal's sentence."""
    return observation.partition("Goal: Stop the machine ")[2].partition(".\n")[0]
