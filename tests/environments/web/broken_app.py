"""An app whose pages break in one way each. Servers import it from this file; tests play it in their own process.

It imports nothing of the tests, which a server does not find.
"""

from __future__ import annotations

from typing import Any

from environments.web import browser
from environments.web.acting import Acting
from environments.web.replies import Handler, Reply
from taskapp_kit import TaskApp, Trajectory

app = TaskApp("broken", version="1.0.0", description="Pages that break.")

ORIGIN = "https://page.test"
SCRIPTS = "default-src 'unsafe-inline'"


def serving(body: str) -> Handler:
    """Serves one page, and a failure of the site's own code for `/raises`."""

    def answer(method: str, url: str, form: str) -> Reply:
        if url.endswith("/raises") or not body:
            raise LookupError("no such shelf")
        return Reply(f"<!doctype html><title>A page</title>{body}".encode(), "text/html", policy=SCRIPTS)

    return answer


WAYS = {
    "well": serving("<button onclick=\"document.title = 'Clicked'\">Go</button>"),
    "loop at start": serving("<script>for (;;) {}</script>"),
    "loop at click": serving('<button onclick="for (;;) {}">Go</button>'),
    "dialogs at start": serving("<script>for (;;) alert('again')</script>"),
    "dialogs at click": serving("<button onclick=\"for (;;) alert('again')\">Go</button>"),
    "site at start": serving(""),
    "site at click": serving('<a href="/raises">Break</a>'),
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
