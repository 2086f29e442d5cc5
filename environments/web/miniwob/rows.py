"""The 125 tasks in BrowserGym's benchmark, as rows with the name of a page and the seed of its content."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

Level = Literal["easy", "medium", "hard"]

TRAIN_SEEDS = range(80)
TEST_SEEDS = range(10_000, 10_008)
"""The seeds of each task. MiniWoB++ does not define splits."""


class MiniwobTask(BaseModel):
    """One task. `seed` is what the page draws its content from; `tags` are how it is done, and the task's own name."""

    name: str
    difficulty: Level
    seed: int
    tags: list[str]


TASKS: dict[str, tuple[Level, str]] = {
    "ascending-numbers": ("medium", "click"),
    "bisect-angle": ("hard", "mouse"),
    "book-flight": ("hard", "text click"),
    "book-flight-nodelay": ("hard", "text click"),
    "buy-ticket": ("medium", "click read"),
    "choose-date": ("medium", "click"),
    "choose-date-easy": ("easy", "click"),
    "choose-date-medium": ("medium", "click"),
    "choose-date-nodelay": ("medium", "click"),
    "choose-list": ("easy", "choose"),
    "circle-center": ("medium", "mouse"),
    "click-button": ("easy", "click"),
    "click-button-sequence": ("easy", "click"),
    "click-checkboxes": ("medium", "click"),
    "click-checkboxes-large": ("medium", "click"),
    "click-checkboxes-soft": ("medium", "click read"),
    "click-checkboxes-transfer": ("medium", "click"),
    "click-collapsible": ("easy", "click"),
    "click-collapsible-2": ("medium", "click search"),
    "click-collapsible-2-nodelay": ("medium", "click search"),
    "click-collapsible-nodelay": ("easy", "click"),
    "click-color": ("easy", "click picture"),
    "click-dialog": ("easy", "click"),
    "click-dialog-2": ("easy", "click"),
    "click-link": ("easy", "click"),
    "click-menu": ("medium", "hover click"),
    "click-menu-2": ("medium", "hover click picture"),
    "click-option": ("easy", "click"),
    "click-pie": ("medium", "hover click"),
    "click-pie-nodelay": ("medium", "hover click"),
    "click-scroll-list": ("medium", "choose"),
    "click-shades": ("medium", "click picture"),
    "click-shape": ("medium", "click picture"),
    "click-tab": ("easy", "click"),
    "click-tab-2": ("medium", "click search"),
    "click-tab-2-easy": ("easy", "click search"),
    "click-tab-2-hard": ("medium", "click search"),
    "click-tab-2-medium": ("easy", "click search"),
    "click-test": ("easy", "click"),
    "click-test-2": ("easy", "click"),
    "click-test-transfer": ("easy", "click"),
    "click-widget": ("easy", "click"),
    "copy-paste": ("easy", "text"),
    "copy-paste-2": ("easy", "text"),
    "count-shape": ("medium", "click picture"),
    "count-sides": ("easy", "click picture"),
    "daily-calendar": ("hard", "mouse text"),
    "drag-box": ("medium", "drag"),
    "drag-circle": ("medium", "drag"),
    "drag-cube": ("hard", "drag picture"),
    "drag-items": ("medium", "drag"),
    "drag-items-grid": ("medium", "drag"),
    "drag-shapes": ("hard", "drag picture"),
    "drag-shapes-2": ("hard", "drag picture"),
    "drag-single-shape": ("medium", "drag"),
    "drag-sort-numbers": ("hard", "drag"),
    "draw-circle": ("medium", "mouse"),
    "draw-line": ("medium", "mouse"),
    "email-inbox": ("medium", "click text search"),
    "email-inbox-delete": ("easy", "click"),
    "email-inbox-forward": ("medium", "click text"),
    "email-inbox-forward-nl": ("medium", "click text"),
    "email-inbox-forward-nl-turk": ("medium", "click text search"),
    "email-inbox-important": ("easy", "click"),
    "email-inbox-nl-turk": ("medium", "click text search"),
    "email-inbox-noscroll": ("medium", "click text"),
    "email-inbox-reply": ("medium", "click text"),
    "email-inbox-star-reply": ("medium", "click text"),
    "enter-date": ("easy", "text"),
    "enter-password": ("easy", "text"),
    "enter-text": ("easy", "text"),
    "enter-text-2": ("easy", "text"),
    "enter-text-dynamic": ("easy", "text"),
    "enter-time": ("easy", "text"),
    "find-greatest": ("medium", "click read"),
    "find-midpoint": ("medium", "mouse"),
    "find-word": ("easy", "text read"),
    "focus-text": ("easy", "click"),
    "focus-text-2": ("easy", "click"),
    "form-sequence": ("medium", "drag click"),
    "form-sequence-2": ("medium", "text click"),
    "form-sequence-3": ("medium", "choose click"),
    "generate-number": ("medium", "click"),
    "grid-coordinate": ("easy", "click"),
    "guess-number": ("medium", "text"),
    "highlight-text": ("medium", "mouse"),
    "highlight-text-2": ("medium", "mouse"),
    "hot-cold": ("hard", "mouse picture"),
    "identify-shape": ("easy", "click picture"),
    "login-user": ("easy", "text"),
    "login-user-popup": ("medium", "text"),
    "multi-layouts": ("medium", "text"),
    "multi-orderings": ("medium", "text"),
    "navigate-tree": ("medium", "click search"),
    "number-checkboxes": ("hard", "click picture"),
    "odd-or-even": ("medium", "click read"),
    "order-food": ("medium", "click read"),
    "phone-book": ("medium", "click search"),
    "read-table": ("easy", "text read"),
    "read-table-2": ("medium", "text read"),
    "resize-textarea": ("medium", "drag"),
    "right-angle": ("medium", "mouse"),
    "scroll-text": ("medium", "text read"),
    "scroll-text-2": ("medium", "mouse"),
    "search-engine": ("medium", "text search"),
    "sign-agreement": ("medium", "text mouse"),
    "simple-algebra": ("easy", "text read"),
    "simple-arithmetic": ("easy", "text read"),
    "social-media": ("medium", "click search"),
    "social-media-all": ("medium", "click read"),
    "social-media-some": ("medium", "click read"),
    "stock-market": ("hard", "click read"),
    "terminal": ("medium", "text"),
    "text-editor": ("hard", "mouse click"),
    "text-transform": ("easy", "text picture"),
    "tic-tac-toe": ("hard", "click picture"),
    "unicode-test": ("easy", "click"),
    "use-autocomplete": ("medium", "text"),
    "use-autocomplete-nodelay": ("medium", "text"),
    "use-colorwheel": ("medium", "text"),
    "use-colorwheel-2": ("medium", "text picture"),
    "use-slider": ("medium", "drag"),
    "use-slider-2": ("hard", "drag"),
    "use-spinner": ("medium", "click"),
    "visual-addition": ("easy", "text picture"),
}
"""The level and tags of each task. Both are our judgment, because the pages define neither.

A task is easy with one or two actions or one field, medium with several actions or something to find first, and hard with
many actions or if an image or a measurement decides. Tags: click, hover, text (typing), choose (a list), drag, mouse
(positions in the image matter), read (the page's text determines what to do), search (not everything is visible at first),
picture (the text alone is not enough).

Five of the package's 130 pages are excluded, as in BrowserGym: in button-delay, chase-circle, hover-shape, moving-items and
simon-says, the time between actions matters, but here the page's clock moves only with actions.
"""


def rows(seeds: range) -> list[MiniwobTask]:
    """Return all tasks with the first seed, then all with the second, and so on."""
    return [
        MiniwobTask(name=name, difficulty=level, seed=seed, tags=[*how.split(), name])
        for seed in seeds
        for name, (level, how) in TASKS.items()
    ]
