"""The responses to the browser's requests. Functions in this process create every page, and no request leaves it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import parse_qs, parse_qsl, urlsplit

from taskapp_kit.errors import Unavailable

from .sites.site import HERE, Page, Request, Site

FONT = "font_hanken_grotesk"
"""The package with the pages' font (SIL Open Font License), so that the machine's fonts have no effect."""

PAGE_POLICY = (
    "default-src 'none'; style-src 'self' 'unsafe-inline'; font-src 'self'; img-src 'self' data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
"""The content security policy of our sites' pages, which allows no scripts."""

LEAVING_POLICY = "default-src 'none'; script-src 'unsafe-inline'"


@dataclass(frozen=True)
class Reply:
    """One answer, with its content security policy."""

    body: bytes
    content_type: str
    status: int = 200
    policy: str = PAGE_POLICY


Handler = Callable[[str, str, str], Reply]
"""Receives the method, URL and body of a request, and returns the response."""


class SiteHandler:
    """Answers requests to a site, and those for the style sheet and fonts that all sites share."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def __call__(self, method: str, url: str, body: str) -> Reply:
        """Return the answer. `keep_blank_values`: an emptied field is a value."""
        parts = urlsplit(url)
        if parts.path.startswith("/assets/"):
            return asset(parts.path.removeprefix("/assets/"))
        request = Request(
            method,
            parts.path or "/",
            dict(parse_qsl(parts.query, keep_blank_values=True)),
            {name: tuple(values) for name, values in parse_qs(body, keep_blank_values=True).items()},
        )
        return _reply(self._site.handle(request), self._site.origin)


def _reply(page: Page, origin: str) -> Reply:
    if page.location is None:
        return Reply(page.html.encode(), "text/html; charset=utf-8", page.status)
    # a redirect would be followed on the network, past our routing, so a script in the page opens the target
    target = origin + page.location
    script = f"<!doctype html><title>…</title><script>location.replace({_quoted(target)})</script>"
    return Reply(script.encode(), "text/html; charset=utf-8", policy=LEAVING_POLICY)


def _quoted(text: str) -> str:
    """Return a JavaScript string that cannot end its script element."""
    escaped = "".join(
        character if character.isalnum() or character in "/:.-_?=&%#+ " else f"\\u{{{ord(character):x}}}"
        for character in text
    )
    return f'"{escaped}"'


def asset(name: str) -> Reply:
    """Return the style sheet or one of the two fonts."""
    if name == "site.css":
        return Reply((HERE / "shared" / "site.css").read_bytes(), "text/css; charset=utf-8")
    fonts: Mapping[str, str] = {"regular.otf": "HankenGrotesk-Regular.otf", "bold.otf": "HankenGrotesk-Bold.otf"}
    if name in fonts:
        return Reply((_font_folder() / fonts[name]).read_bytes(), "font/otf")
    return Reply(b"", "text/plain", 404)


def _font_folder() -> Path:
    spec = find_spec(FONT)
    if spec is None or spec.origin is None:
        raise Unavailable(
            "environment 'web' needs the package font-hanken-grotesk, which is not installed here; install the extra "
            "that has it: pip install 'taskapp-kit[web]'."
        )
    return Path(spec.origin).parent / "files"
