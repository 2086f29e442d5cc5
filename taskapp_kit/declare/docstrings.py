"""Docstrings for models and readers: an author's line breaks inside a paragraph are removed."""

from __future__ import annotations

import inspect
import re

_STANDS_ALONE = re.compile(r"\s|[-*] |\d+[.)] |[|#>]|```")
"""The beginning of a line that is not joined: indented, a list's item, a table's row, a heading, a quotation, a fence."""


def docstring(text: str | None) -> str:
    """The text without its indentation, each paragraph in one line."""
    return joined(inspect.cleandoc(text or ""))


def joined(text: str) -> str:
    """The text with each paragraph in one line; lists, tables, indented lines and fenced blocks stay as they are."""
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
