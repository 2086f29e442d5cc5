"""An app whose pages break in one way each. Servers import it from this file; tests play it in their own process."""

from __future__ import annotations

from typing import Any

from environments.web import browser
from environments.web.acting import Acting
from environments.web.replies import Reply
from taskapp_kit import TaskApp, Trajectory
from tests.environments.web.visits import ORIGIN, html, pages, script

app = TaskApp("broken", version="1.0.0", description="Pages that break.")


def raising(method: str, url: str, body: str) -> Reply:
    """A site whose code raises for one path."""
    if url.endswith("/raises"):
        raise LookupError("no such shelf")
    return html('<a href="/raises">Break</a>')


WAYS = {
    "well": pages({"/": "<button onclick=\"document.title = 'Clicked'\">Go</button>"}),
    "loop at start": pages({"/": script("for (;;) {}")}),
    "loop at click": pages({"/": '<button onclick="for (;;) {}">Go</button>'}),
    "dialogs at start": pages({"/": script("for (;;) alert('again')")}),
    "dialogs at click": pages({"/": "<button onclick=\"for (;;) alert('again')\">Go</button>"}),
    "site at start": lambda method, url, body: raising(method, "/raises", body),
    "site at click": raising,
}


class Broken(Acting):
    """One button or link, which breaks the page in one way."""

    def __init__(self, way: str = "well") -> None:
        self.way = way

    def reset(self, seed: int) -> str:
        """The page."""
        self.browser = browser.shared()

        async def work() -> str:
            self.opened = await self.browser.open(seed, {ORIGIN: WAYS[self.way]}, ORIGIN + "/")
            await self.opened.window.settle()
            return await self.opened.window.look()

        return self.browser.run(work())


app.environment("broken", splits={"train": range(100)}, max_steps=50, max_turns=50)(Broken)


@app.policy("clicks")
def clicks(observation: str) -> dict[str, Any]:
    """Clicks, and says so."""
    if "Tab 0 (active): Clicked" in observation:
        return {"send_msg_to_user": {"text": "Done."}}
    return {"click": {"bid": 1}}


@app.rubric
def ended(trajectory: Trajectory) -> float:
    """It came to its end."""
    return 1.0 if trajectory.status == "terminated" else 0.0
