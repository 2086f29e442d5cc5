"""How an episode begins and ends on a MiniWoB++ page."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ..replies import Reply
from . import pages

if TYPE_CHECKING:
    from ..window import Window

HERE = Path(__file__).parent
START, OUTCOME, DESCRIBE, SHOWN = (
    (HERE / name).read_text() for name in ("start.js", "outcome.js", "describe.js", "shown.js")
)

POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
"""The content security policy of these pages: their own scripts run, but they cannot load anything from other origins."""


@dataclass(frozen=True)
class Outcome:
    """The state of an episode: whether it is `done`, the page's reward from -1 to 1, and whether the task's page was left."""

    done: bool
    raw: float
    left: bool = False


def answer(method: str, url: str, body: str) -> Reply:
    """Return what the browser receives for a request to the origin: files. Nothing can be sent there."""
    if method != "GET" or body:
        return Reply(b"", "text/plain", 405, POLICY)
    parts = urlsplit(url)
    status, content_type, content = pages.handle(parts.path, parts.query)
    return Reply(content, content_type, status, POLICY)


async def start(window: Window, seed: int) -> str:
    """Start the episode when the page has loaded, and return the goal as text. The same seed gives the same task."""
    goal: str = await window.within(window.page.evaluate(START, seed))
    return goal


async def outcome(window: Window) -> Outcome:
    """Return the state of the episode."""
    found: list[bool | float] | None = await window.within(window.page.evaluate(OUTCOME))
    return Outcome(done=True, raw=0.0, left=True) if found is None else read_outcome(bool(found[0]), float(found[1]))


def read_outcome(done: bool, raw: float) -> Outcome:
    """Return the outcome of a page. Some pages compute rewards below -1, or NaN for an answer that is not a number."""
    return Outcome(done, 0.0 if math.isnan(raw) or not done else min(1.0, max(-1.0, raw)))


async def describe(window: Window) -> None:
    """Describe what has no text, so that the tree shows it. A page that was left is not changed."""
    await window.within(window.page.evaluate(DESCRIBE))


async def shown(window: Window) -> tuple[int, int]:
    """Width and height of the part of the window that has the task: 160 × 210, more where the page shows more."""
    width, height = await window.within(window.page.evaluate(SHOWN))
    return int(width), int(height)
