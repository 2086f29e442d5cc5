"""Windows on pages that a test makes up, with the actions of an episode."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from environments.web.acting import Acting
from environments.web.browser import Browser
from environments.web.replies import Handler, Reply

ORIGIN = "https://page.test"

OPEN_POLICY = (
    "default-src * data: blob: filesystem: 'unsafe-inline' 'unsafe-eval'; form-action *; worker-src * data: blob:; "
    "frame-src * data: blob: file:; img-src * data: file:"
)
"""A content security policy that allows all: what is left are the browser's walls."""


def html(body: str, status: int = 200) -> Reply:
    """A page whose scripts run."""
    return Reply(
        f"<!doctype html><title>A page</title>{body}".encode(), "text/html; charset=utf-8", status, OPEN_POLICY
    )


def script(code: str) -> str:
    """A page's body of one script."""
    return f"<p>A page.</p><script>{code}</script>"


def pages(bodies: Mapping[str, str | Reply]) -> Handler:
    """Serves these bodies by path, and 404 for any other."""

    def answer(method: str, url: str, body: str) -> Reply:
        found = bodies.get(url.removeprefix(ORIGIN).partition("?")[0], html("<p>There is no such page.</p>", 404))
        return html(found) if isinstance(found, str) else found

    return answer


class Visit(Acting):
    """A window on pages of `https://page.test`, which closes at the end of the `with` statement."""

    def __init__(self, browser: Browser, handler: Handler, start: str = ORIGIN + "/", screenshot: bool = False) -> None:
        self.browser = browser
        self.screenshot = screenshot
        self.seen = browser.run(self._start(handler, start))

    async def _start(self, handler: Handler, start: str) -> str:
        self.opened = await self.browser.open(0, {ORIGIN: handler}, start)
        try:
            await self.opened.window.settle()
            return await self.opened.window.look()
        except BaseException:
            await self.opened.close()
            raise

    def evaluate(self, expression: str) -> object:
        """What an expression is in the page."""

        async def work() -> object:
            return await self._window.within(self._window.page.evaluate(expression))

        return self.browser.run(work())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
