"""The blocks of a page: what is saved, what is run, and what a command prints. Imports only the standard library.

The words after a fence decide what happens to a block:

    ```python               runs; the blocks of a page share a namespace and a fresh working directory
    ```python title=x.py    is saved there as x.py, and run (`append`: added to the end of x.py)
    ```python needs=NAME    runs where the package NAME is installed
    ```python no-run        does not run in the suite (such blocks are counted)
    ```console run          each `$ ` line runs in one shell of the page; the lines below it are what it prints, in
                            order, where `…` matches anything and other lines may come between
    ```console              is pasted by tests/docs/first_hour.py if the page is one of the first hour's; otherwise only read
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

KEY_PLACEHOLDER = "THE-KEY-THAT-SERVE-PRINTED"
FENCE = re.compile(r"^```(\S*)[ \t]*(.*)$")
MINTED_KEY = re.compile(r"export ENVIRONMENT_API_KEY=([\w-]{16,})")


@dataclass(frozen=True)
class Block:
    """A fenced block. line: the number of its first line of text, from 1."""

    page: Path
    line: int
    language: str
    words: str
    text: str

    @property
    def title(self) -> str | None:
        title = re.search(r"title=(\S+)", self.words)
        return title[1] if title else None

    @property
    def runs(self) -> bool:
        needed = re.search(r"needs=(\S+)", self.words)
        if needed and importlib.util.find_spec(needed[1]) is None:
            return False
        if self.language == "python":
            return "no-run" not in self.words
        return self.language == "console" and "run" in self.words.split()

    def save(self, directory: Path) -> Path:
        """Write the block to the file that its title names, or append it."""
        assert self.title is not None
        file = directory / self.title
        before = file.read_text(encoding="utf-8") if "append" in self.words.split() else ""
        file.write_text(before + self.text, encoding="utf-8")
        return file

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    closed: list[Block] = []
    opened: tuple[int, str, str] | None = None
    lines: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        fence = FENCE.match(line)
        if opened is None and fence:
            opened, lines = (number + 1, fence[1], fence[2]), []
        elif opened is not None and line.rstrip() == "```":
            closed.append(Block(page, *opened, "\n".join(lines) + "\n"))
            opened = None
        else:
            lines.append(line)
    assert opened is None, f"{page}: the block at line {opened} is not closed"
    return closed


def commands(text: str) -> list[tuple[str, list[str]]]:
    """Return each `$ ` line, with the lines that a `\\` at its end continues it by, and the lines expected below it."""
    read: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            read.append((line[2:], []))
        elif read and not read[-1][1] and read[-1][0].endswith("\\"):
            read[-1] = (f"{read[-1][0]}\n{line}", [])
        elif read and line.strip():
            read[-1][1].append(line)
    return read


def first_missing(expected: list[str], printed: str) -> str | None:
    """Return the first expected line that does not appear in its turn, or None if all do."""
    lines = iter(" ".join(re.sub(r"\x1b\[[0-9;]*m", "", line).split()) for line in printed.splitlines())
    for line in expected:
        words = " ".join(line.split())
        pattern = re.compile(".*".join(map(re.escape, words.split("…"))))
        if words != "…" and not any(pattern.fullmatch(printed_line) for printed_line in lines):
            return line
    return None
