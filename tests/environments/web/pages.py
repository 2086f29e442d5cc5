"""Windows on pages of a test's own: HTML by path, scripts allowed, no site and no task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self
from urllib.parse import urlsplit

from environments.web.acting import Acting
from environments.web.browser import Browser
from environments.web.replies import Handler, Reply, asset
from environments.web.view import View
from taskapp_kit import Image, Step, Text

ORIGIN = "https://page.test"
SCRIPTS_TOO = "default-src 'self' data: 'unsafe-inline'; script-src 'unsafe-inline'"


def pages(bodies: Mapping[str, str]) -> Handler:
    """Answers with the HTML of a path. Its `{query}` is what was asked for, its `{form}` what was sent."""

    def answer(method: str, url: str, body: str) -> Reply:
        parts = urlsplit(url)
        if parts.path.startswith("/assets/"):
            return asset(parts.path.removeprefix("/assets/"))
        if parts.path not in bodies:
            return Reply(b"<!doctype html><title>Lost</title><h1>Not found</h1>", "text/html; charset=utf-8", 404)
        html = bodies[parts.path].replace("{query}", parts.query).replace("{form}", f"{method} {body}")
        head = '<!doctype html><html lang="en"><link rel="icon" href="data:,">'
        return Reply((head + html).encode(), "text/html; charset=utf-8", policy=SCRIPTS_TOO)

    return answer


class PageWindow(Acting):
    """What an episode does with a window on a test's pages, open in a `with` block. `text` is the last observation's."""

    def __init__(
        self, browser: Browser, handler: Handler, start: str = "/", screenshot: bool = False, seed: int = 1
    ) -> None:
        self.browser = browser
        self.screenshot = screenshot
        self.text = ""
        self.pictures: list[bytes] = []
        self._keep(browser.run(self._start(handler, start, seed)))

    async def _start(self, handler: Handler, start: str, seed: int) -> str | list[Text | Image]:
        self.opened = await self.browser.open(seed, {ORIGIN: handler}, ORIGIN + start)
        try:
            await self.opened.window.settle()
            return await self._observation(self.opened.window)
        except BaseException:
            await self.opened.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def view(self) -> View:
        return View(self.text)

    def do(self, name: str, **arguments: object) -> View:
        """One action, and the page after it."""
        step: Step = getattr(self, name)(**arguments)
        self._keep(step.observation)
        return self.view

    def on(self, name: str, role: str, element: str, **arguments: object) -> View:
        """One action on the element of that role and name."""
        return self.do(name, bid=self.view.find(role, element).bid, **arguments)

    def evaluate(self, expression: str) -> object:
        """What an expression is in the page."""

        async def work() -> object:
            return await self._window.within(self._window.page.evaluate(expression))

        return self.browser.run(work())

    def _keep(self, observation: object) -> None:
        if isinstance(observation, str):
            self.text = observation
        else:
            assert isinstance(observation, list)
            [text, image] = observation
            self.text = text.text
            self.pictures.append(image.png)
