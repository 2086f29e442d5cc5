"""Web: agents use a site in a real browser: a shop, a booking calendar, mail with tickets, or admin tables.

README.md in this directory describes observations, actions, rewards and the end of an episode.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from taskapp_kit import Image, TaskApp, Text, Trajectory

from . import browser, tasks
from .acting import ACTIONS, Acting, ActionName
from .miniwob import environment as miniwob
from .replies import SiteHandler
from .tasks import WebTask
from .view import View

app = TaskApp(
    "web",
    version="1.0.0",
    description="Find, change and book on sites in a real browser: a shop, a calendar, mail and tickets, admin tables.",
)

MAX_STEPS = 60


@app.environment(
    "web",
    tasks={
        "train": lambda: tasks.rows("train", tasks.TRAIN),
        "test": lambda: tasks.rows("test", tasks.TEST),
    },
    row=WebTask,
    max_steps=MAX_STEPS,
    step_timeout_seconds=60,  # for a page that hangs, and for waiting until the browser is free
    baselines={"noop": 0.0, "random": 0.15},
    tags=("web", "multi-turn", "browser"),
)
class Web(Acting):
    """You use a site in a web browser to do what the user asks.

    After each action you see the tabs, and the page as a tree of elements. Elements with a number, such as
    `[12] button "Save"`, can be acted on by that number; the numbers change with every page. Do exactly what is asked
    and nothing else. When it is done, send the user a message: the answer if one was asked for. If it cannot be done,
    report that.
    """

    def __init__(
        self, screenshot: bool = False, only: Annotated[list[ActionName], Field(min_length=1)] | None = None
    ) -> None:
        self.screenshot = screenshot
        self.only = only

    def actions(self) -> list[str]:
        """Return the tools of the episode: all, or those that the config names in `only`."""
        return list(self.only or ACTIONS)

    @classmethod
    def setup_worker(cls) -> None:
        """Start the browser of this process. Raises Unavailable, which names what is missing."""
        browser.shared().version()

    def reset(self, task: WebTask, context: Any = None) -> str | list[Text | Image]:
        """Return the goal, and the site's first page."""
        self.screenshot = self.screenshot and (context is None or context.wants_images)
        self.problem = tasks.problem(task)
        site = self.problem.site
        self.first = site.record()
        self.browser = browser.shared()

        async def work() -> str | list[Text | Image]:
            self.opened = await self.browser.open(task.number, {site.origin: SiteHandler(site)}, site.origin + "/")
            await self.opened.window.settle()
            return await self._observation(self.opened.window, f"Goal: {self.problem.goal}\n")

        return self.browser.run(work())

    async def _ended(self) -> bool:
        return self.problem.ends_on_change and self.problem.site.record() != self.first

    def final_state(self) -> dict[str, Any]:
        """Return the end state, for rubrics only: whether the record is right, whether it changed, and the expected answer."""
        record = self.problem.site.record()
        return {
            "as_expected": record == self.problem.expected,
            "changed": record != self.first,
            "answer": self.problem.answer,
            "feasible": self.problem.feasible,
            "message_needed": not self.problem.ends_on_change,
        }


def plain(text: str) -> str:
    """Return a message as it is compared: without case, space around it and a full stop at the end."""
    return " ".join(text.casefold().split()).rstrip(".").strip("\"'")


@app.rubric(environment="web", weight=1.0)
def solved(trajectory: Trajectory) -> float:
    """What was asked for was done, nothing else was changed, and the answer is right."""
    end = trajectory.final_state
    last = trajectory.steps[-1].info if trajectory.steps else {}
    if not end["feasible"]:
        return float("infeasible" in last and not end["changed"])
    if not end["as_expected"]:
        return 0.0
    if not end["message_needed"]:
        return 1.0
    message = last.get("message")
    return float(message is not None and (end["answer"] is None or plain(message) == plain(end["answer"])))


@app.metric(environment="web")
def ending(trajectory: Trajectory) -> dict[str, float]:
    """1 or 0: a message was sent; it was reported as infeasible; the site was changed. And how many actions were refused."""
    last = trajectory.steps[-1].info if trajectory.steps else {}
    return {
        "answered": float("message" in last),
        "gave_up": float("infeasible" in last),
        "changed": float(trajectory.final_state["changed"]),
        "refusals": float(sum(step.refused is not None for step in trajectory.steps)),
    }


@app.policy("gold", environment="web")
def gold(observation: str | list[dict[str, str]], task: WebTask) -> dict[str, dict[str, Any]]:
    """Solves the task by rules for its kind, from what the page shows."""
    text = (
        observation if isinstance(observation, str) else observation[0]["text"]
    )  # an observation with an image is a list
    found = tasks.solution(task.kind, task.difficulty, task.number, task.feasible)
    return {name: dict(arguments) for name, arguments in found.gold(View(text)).items()}


miniwob.declare(app)
