"""Where each key of a TOML text stands: the parser in Python's own library does not tell.

The text is one that the parser has accepted (`lines_of`), or one that it may still refuse (`deepest_key`): nothing here
raises on any text. Lines count from 1, as in an editor.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field

Path = tuple[str | int, ...]

BARE = re.compile(r"[A-Za-z0-9_-]+")
BASIC = re.compile(r'"(?:[^"\\\n]|\\.)*"')
LITERAL = re.compile(r"'[^'\n]*'")
BLANK = re.compile(r"[ \t]*")
SCALAR = re.compile(r"[^,\]}#\n]+")
REST = re.compile(r"[^\n]*")
QUOTES = ('"', "'")
DEEPEST = 64
"""Parts of a path that are kept; what lies deeper has the place of the part above it."""


def lines_of(text: str) -> dict[Path, int]:
    """Path to the line of its key, of its header, or of the element of its list. A path that stands often: the first.

    `[a.b]` says where `("a",)` and `("a", "b")` are; the n-th `[[a]]` and the n-th element of a list are `("a", n)`.
    """
    scan = _Scan(_unix(text))
    scan.document()
    return scan.lines


def deepest_key(text: str) -> tuple[int, int]:
    """(line, parts) of the dotted key with most parts; (0, 0) when there is no key. Linear in the text's length.

    The parser takes time that grows with the square of the parts of a key: a hostile file is refused before.
    """
    scan = _Scan(_unix(text))
    scan.document()
    return scan.deepest


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n")


@dataclass(slots=True)
class _Scan:
    """A walk over the text. It keeps where keys are and skips over values; lists and tables inside values are walked."""

    text: str
    at: int = 0
    line: int = 1
    lines: dict[Path, int] = field(default_factory=dict)
    deepest: tuple[int, int] = (0, 0)
    counts: dict[Path, int] = field(default_factory=dict)

    def document(self) -> None:
        """Walks the whole text; a line that it cannot read is skipped."""
        table: Path = ()
        while self.at < len(self.text):
            self._skip(BLANK)
            letter = self.text[self.at : self.at + 1]
            if letter == "[":
                table = self._header()
            elif letter not in ("", "\n", "#"):
                self._pair(table)
            self._rest_of_line()

    def _header(self) -> Path:
        many = self.text.startswith("[[", self.at)
        self.at += 2 if many else 1
        line, parts = self.line, self._key()
        table: Path = ()
        for index, part in enumerate(parts):
            table = self._note(table, part, line)
            if many and index == len(parts) - 1:
                self.counts[table] = self.counts.get(table, -1) + 1
            if table in self.counts:  # `[a.b]` below `[[a]]` belongs to the last of them
                table = self._note(table, self.counts[table], line)
        return table

    def _pair(self, table: Path) -> None:
        line, path = self.line, table
        for part in self._key():
            path = self._note(path, part, line)
        self._skip(BLANK)
        if self.text.startswith("=", self.at):
            self.at += 1
            self._value(path)

    def _key(self) -> list[str]:
        parts: list[str] = []
        count, line = 0, self.line
        while True:
            self._skip(BLANK)
            found = next((m for kind in (BARE, BASIC, LITERAL) if (m := kind.match(self.text, self.at))), None)
            if found is None:
                break
            self.at = found.end()
            count += 1
            if count <= DEEPEST:
                parts.append(_decoded(found[0]))
            self._skip(BLANK)
            if not self.text.startswith(".", self.at):
                break
            self.at += 1
        if count > self.deepest[1]:
            self.deepest = (line, count)
        return parts

    def _value(self, path: Path) -> None:
        """Skips one value; what is inside lists and inline tables is noted. No recursion: a text may nest without end."""
        open_places: list[tuple[Path, int]] = []  # (path of the list, next index) or (path of the table, -1)
        while True:
            self._skip(BLANK)
            letter = self.text[self.at : self.at + 1]
            if letter in ("[", "{"):
                self.at += 1
                open_places.append((path, 0 if letter == "[" else -1))
            else:
                self._scalar()
            while open_places:  # behind a value, or at the start of a list or a table
                self._separators()
                letter = self.text[self.at : self.at + 1]
                if letter not in ("]", "}"):
                    break
                self.at += 1
                open_places.pop()
            if not open_places or letter == "":
                return
            inside, index = open_places[-1]
            if index >= 0:
                open_places[-1] = (inside, index + 1)
                path = self._note(inside, index, self.line)
            else:
                line, path = self.line, inside
                for part in self._key():
                    path = self._note(path, part, line)
                self._skip(BLANK)
                if not self.text.startswith("=", self.at):
                    return
                self.at += 1

    def _scalar(self) -> None:
        for mark in ('"""', "'''"):
            if self.text.startswith(mark, self.at):
                self._long_text(mark)
                return
        quoted = self.text[self.at : self.at + 1] in QUOTES
        found = BASIC.match(self.text, self.at) or LITERAL.match(self.text, self.at)
        if found is None:
            found = (REST if quoted else SCALAR).match(self.text, self.at)
        if found is not None:
            self.at = found.end()

    def _long_text(self, mark: str) -> None:
        start, at = self.at, self.at + 3
        while True:
            at = self.text.find(mark, at)
            if at < 0:
                at = len(self.text)
                break
            before = at
            while mark == '"""' and self.text[before - 1] == "\\":
                before -= 1
            if (at - before) % 2:
                at += 1  # `\"` is a letter
                continue
            at += 3
            for _ in range(2):  # a quote, or two, may stand right before the end
                at += self.text.startswith(mark[0], at)
            break
        self.at = at
        self.line += self.text.count("\n", start, at)

    def _separators(self) -> None:
        """Skips what may stand between the elements of a list or a table."""
        while self.at < len(self.text):
            letter = self.text[self.at]
            if letter == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif letter in " \t,\n":
                self.line += letter == "\n"
                self.at += 1
            else:
                return

    def _rest_of_line(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end + 1
        self.line += 1

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self.text, self.at)
        if found is not None:
            self.at = found.end()

    def _note(self, above: Path, part: str | int, line: int) -> Path:
        """Keeps the line of `part`, the first time; its path."""
        path = (*above, part) if len(above) < DEEPEST else above
        self.lines.setdefault(path, line)
        return path


def _decoded(token: str) -> str:
    if token[0] not in "\"'":
        return token
    try:
        return str(tomllib.loads(f"k = {token}")["k"])
    except ValueError:
        return token[1:-1]
