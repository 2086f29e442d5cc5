"""The pages of the package `miniwob`, read from its installation directory. The package is never imported."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

from taskapp_kit.errors import Unavailable

ORIGIN = "https://miniwob.test"

SERVED = ("core", "common", "miniwob")
"""The directories of the tasks' pages. The flight bookings in `flight` are not part of the task list."""

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".gif": "image/gif",
}


def url(task: str) -> str:
    """Return the address of a task's page."""
    return f"{ORIGIN}/miniwob/{task}.html"


def handle(path: str, query: str = "") -> tuple[int, str, bytes]:
    """Status, content type and body for a path of the origin.

    There is nothing under a query, for `?mode=` and `?record=` would change a page.

    Raises Unavailable where the package is not installed.
    """
    if query or (file := _files().get(path)) is None:
        return 404, "text/plain; charset=utf-8", b"not found"
    return 200, CONTENT_TYPES[file.suffix], _content(file)


def check() -> None:
    """Raise Unavailable where the package, or its pages, are not installed."""
    _files()


def folder() -> Path:
    """Return the directory of the pages. Raises Unavailable if the package is not installed."""
    spec = importlib.util.find_spec("miniwob")
    if (
        spec is None or spec.origin is None
    ):  # a directory with this name next to an app has no origin, and is not the package
        raise Unavailable(
            "The environment 'miniwob' needs the package miniwob, which is not installed. "
            "Run: pip install 'taskapp-kit[miniwob]'."
        )
    return Path(spec.origin).resolve().parent / "html"


@functools.cache
def _files() -> dict[str, Path]:
    """Return the file of each served path. Requests can only reach these files."""
    root = folder()
    found = {
        f"/{file.relative_to(root).as_posix()}": file
        for folder in SERVED
        for file in sorted((root / folder).rglob("*"))
        if file.suffix in CONTENT_TYPES and file.is_file() and not file.is_symlink()
    }
    if not found:
        raise Unavailable(f"the package miniwob at {root.parent} has no pages; install miniwob==1.1.0 again.")
    return found


@functools.lru_cache(maxsize=256)
def _content(file: Path) -> bytes:
    return file.read_bytes()
