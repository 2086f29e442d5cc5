"""Pages that a test makes up, on which everything is allowed."""

from __future__ import annotations

from collections.abc import Mapping

from environments.web.replies import Handler, Reply
from tests.environments.web.pages import ORIGIN

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
