"""The environment `miniwob`: the tasks of MiniWoB++, with the browser, the observation and the actions of `web`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from taskapp_kit import Image, Step, TaskApp, Text, Trajectory

from .. import browser
from ..acting import Acting, ActionName
from ..window import Window
from . import episode, pages
from .rows import TEST_SEEDS, TRAIN_SEEDS, MiniwobTask, rows

NAME = "miniwob"

MAX_STEPS = 50

ACTIONS: tuple[ActionName, ...] = (
    "click", "dblclick", "hover", "fill", "select_option", "press", "focus", "clear", "drag_and_drop", "scroll",
    "keyboard_press", "keyboard_type", "mouse_move", "mouse_click", "mouse_dblclick", "mouse_drag_and_drop", "noop",
)  # fmt: skip
"""There are no actions for addresses, tabs or messages, because a task is one page, which reports when it is done."""


class Miniwob(Acting):
    """You do a small task on a page in a web browser.

    After each action you see the page as a tree of elements. Elements with a number, such as `[12] button "Save"`, can
    be acted on by that number; the numbers change with every step. What has no text is described: what it is, its
    color, size and the place of its middle in pixels, as in `[7] img "circle, blue, 20x20 at 53,92"`; places are those
    that the mouse takes. The page ends the episode, at once after a right or a wrong answer.
    """

    def __init__(
        self, screenshot: bool = False, only: Annotated[list[ActionName], Field(min_length=1)] | None = None
    ) -> None:
        if unknown := [name for name in only or () if name not in ACTIONS]:
            raise ValueError(f"only: a task of MiniWoB++ is one page, without {', '.join(unknown)}")
        self.screenshot = screenshot
        self.only = only

    @classmethod
    def setup_worker(cls) -> None:
        """Start the browser of this process. Raises Unavailable, which names what is missing."""
        browser.shared().version()

    def actions(self) -> list[str]:
        """Return the tools of the episode: all that act on one page, or those that the config names in `only`."""
        return list(self.only or ACTIONS)

    def reset(self, task: MiniwobTask, context: Any = None) -> str | list[Text | Image]:
        """Return the goal, and the page. Raises Unavailable where the package with the pages is not installed."""
        pages.check()
        self.screenshot = self.screenshot and (context is None or context.wants_images)
        self.outcome = episode.Outcome(done=False, raw=0.0)
        self.browser = browser.shared()

        async def work() -> str | list[Text | Image]:
            self.opened = await self.browser.open(
                task.seed, {pages.ORIGIN: episode.answer}, pages.url(task.name), number_all=True
            )
            window = self.opened.window
            await window.settle()
            goal = await episode.start(window, task.seed)
            await window.settle()
            return await self._observation(window, f"Goal: {goal}\n")

        return self.browser.run(work())

    async def _seen(self) -> Step:
        window = self._window
        self.outcome = await episode.outcome(window)
        end = self.outcome
        return Step(
            await self._observation(window),
            reward=end.raw if end.done else None,
            terminated=end.done,
            info={"left": True} if end.left else {},
        )

    async def _observation(self, window: Window, before: str = "") -> str | list[Text | Image]:
        await episode.describe(window)
        return await super()._observation(window, before)

    async def _picture(self, window: Window) -> bytes:
        return await window.picture(*await episode.shown(window))

    def final_state(self) -> dict[str, Any]:
        """Return the end, for rubrics only: whether the page ended the episode, its reward, and whether it was left."""
        return {"done": self.outcome.done, "raw_reward": self.outcome.raw, "left": self.outcome.left}


def solved(trajectory: Trajectory) -> float:
    """Return the page's own reward, without its discount for time, is above 0: the measure of BrowserGym."""
    return float(trajectory.final_state["raw_reward"] > 0)


def ending(trajectory: Trajectory) -> dict[str, float]:
    """1 or 0: the page ended the episode; another page was opened, which also ends it. And the page's reward, -1 to 1."""
    end = trajectory.final_state
    return {"done": float(end["done"]), "left": float(end["left"]), "raw_reward": end["raw_reward"]}


def declare(app: TaskApp) -> None:
    """Add the environment to the app."""
    app.environment(
        NAME,
        tasks={"train": lambda: rows(TRAIN_SEEDS), "test": lambda: rows(TEST_SEEDS)},
        row=MiniwobTask,
        max_steps=MAX_STEPS,
        step_timeout_seconds=60,  # as in `web`
        reward_range=(-1.0, 1.0),
        baselines={"noop": 0.0},
        tags=("web", "multi-turn", "browser"),
    )(Miniwob)
    app.rubric(name="miniwob_solved", environment=NAME, weight=1.0)(solved)
    app.metric(name="miniwob_ending", environment=NAME)(ending)
