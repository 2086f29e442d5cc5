"""Locations in an author's file (`file:line`), docstrings, and suggestions for misspelled names."""

from __future__ import annotations

import inspect
import os.path
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from taskapp_kit.errors import closest

if TYPE_CHECKING:
    from types import CodeType


def shown_path(path: str) -> str:
    """Return a path relative to the working directory, or the path unchanged if it is outside that directory."""
    try:
        relative = os.path.relpath(path)
    except ValueError:  # another drive
        return path
    return path if relative.startswith("..") else relative


def calling_line(depth: int) -> str:
    """Return `file:line` of a caller.

    Depth 1 is the caller of the function that calls `calling_line`, and depth 2 is the caller of that caller.
    """
    frame = sys._getframe(depth + 1)
    return f"{shown_path(frame.f_code.co_filename)}:{frame.f_lineno}"


def line_of(target: Any, fallback: str) -> str:
    """Return `file:line` of a function, or `fallback` if the value is not a function but a class or callable object."""
    code: CodeType | None = getattr(inspect.unwrap(target) if callable(target) else target, "__code__", None)
    if code is not None and not code.co_filename.startswith("<"):  # the generated __init__ of a dataclass has no file
        return f"{shown_path(code.co_filename)}:{code.co_firstlineno}"
    return fallback


def without_folder(place: str) -> str:
    """Shorten `/srv/games/adder.py:10` to `adder.py:10`, because callers must not see the server's directories."""
    return re.split(r"[/\\]", place)[-1]


def in_order(place: str) -> list[tuple[str, int]]:
    """Return a sort key that orders `app.py:9` before `app.py:10`."""
    return [(words, int(digits or 0)) for words, digits in re.findall(r"(\D*)(\d*)", place)]


RENAME = "use one of the expected values"


def did_you_mean(name: str, known: Iterable[str], otherwise: str = RENAME) -> str:
    """Return a suggestion for an unknown name: the closest known name, or `otherwise` if none is close."""
    close = closest(name, known)
    return f"did you mean {close!r}?" if close else otherwise


_STANDS_ALONE = re.compile(r"\s|[-*] |\d+[.)] |[|#>]|```")
"""Start of a line that is not joined to the previous one: an indented line, a list item, a table row, a heading, a
quotation or a fence.
"""


def docstring(text: str | None) -> str:
    """Return a docstring without its indentation and with each paragraph on one line."""
    return joined(inspect.cleandoc(text or ""))


def joined(text: str) -> str:
    """Join the lines of each paragraph of a text. Lists, tables, indented lines and fenced blocks are unchanged."""
    lines: list[str] = []
    fenced, joins = False, False
    for line in text.strip().split("\n"):
        line = line.rstrip()
        fence = line.startswith("```")
        alone = fenced or _STANDS_ALONE.match(line) is not None
        if joins and line and not alone:
            lines[-1] += f" {line}"
        else:
            lines.append(line)
        fenced ^= fence
        joins = bool(line) and not fence and not fenced and not line[0].isspace() and line[0] not in "|#"
    return "\n".join(lines)
