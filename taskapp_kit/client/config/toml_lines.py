"""The line of each key of a TOML text, which the standard library's parser does not report.

The text is one that the parser accepts (`lines_of`), or one that it may still refuse (`deepest_key`): nothing here raises
on any text, and the time is linear in its length. Lines count from 1, as in an editor.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field

TomlPath = tuple[str | int, ...]

TOKEN = re.compile(
    r'"""(?:[^"\\]+|\\.|"(?!""))*+(?:"{3,5})?'
    r"|'''(?:[^']+|'(?!''))*+(?:'{3,5})?"
    r'|"(?:[^"\\\n]+|\\[^\n])*+"?'
    r"|'[^'\n]*+'?"
    r"|[ \t]+|#[^\n]*|[A-Za-z0-9_-]+|.",
    re.DOTALL,
)
"""One token; a quoted text that has no end is one up to the end of its line, or of the file."""
NAME = re.compile(r"""[A-Za-z0-9_-]+|"(?!"")(?:[^"\\]|\\.)*"|'(?!'')[^']*'""")
DEEPEST = 64
"""Parts of a path that are stored; what lies deeper has the place of the part above it."""


def lines_of(text: str) -> dict[TomlPath, int]:
    """Path to the line of its key, its header, or its element of a list; of a repeated path, the first line.

    `[a.b]` is where `("a",)` and `("a", "b")` are; the n-th `[[a]]` and the n-th element of a list are `("a", n)`.
    """
    return _scan(text).lines


def deepest_key(text: str) -> tuple[int, int]:
    """(line, parts) of the dotted key with the most parts; (0, 0) when there is no key.

    The parser takes time that grows with the square of a key's parts: a hostile file is refused before it is parsed.
    """
    return _scan(text).deepest


def _scan(text: str) -> _Scan:
    scan = _Scan()
    text = text.replace("\r\n", "\n")
    for token in TOKEN.finditer(text):
        word = token[0]
        if word == "\n":
            scan.end_of_line()
        elif word[0] not in " \t#":
            scan.take(word, doubled=text.startswith("[[", token.start()))
            scan.line += word.count("\n")
    return scan


@dataclass(slots=True)
class _Scan:
    """The state of a walk over the tokens. state: what the next token belongs to; `rest` skips to the end of the line.

    table: path of the current header. here: path of the key or value being read. parts: of the key being read. opened:
    lists and inline tables around it, as (path, next index), and (path, -1) for a table.
    """

    lines: dict[TomlPath, int] = field(default_factory=dict)
    deepest: tuple[int, int] = (0, 0)
    line: int = 1
    state: str = "key"
    table: TomlPath = ()
    here: TomlPath = ()
    parts: int = 0
    dotted: bool = True
    header: list[str] = field(default_factory=list)
    many: bool = False
    opened: list[tuple[TomlPath, int]] = field(default_factory=list)
    element_next: bool = False
    counts: dict[TomlPath, int] = field(default_factory=dict)

    def end_of_line(self) -> None:
        if not self.opened:
            self._begin_key(self.table)
        self.line += 1

    def take(self, word: str, *, doubled: bool) -> None:
        if self.state == "value":
            self._value(word)
        elif self.state in ("key", "header") and NAME.fullmatch(word) and self.dotted:
            self._key_part(word)
        elif word == ".":
            self.dotted = True
        elif self.state == "header":
            if word == "]":
                self._end_header()
        elif self.state == "key":
            if word == "=":
                self.state = "value"
            elif self.opened:
                self._value(word)
            elif word == "[" and not self.parts:
                self.state, self.header, self.many = "header", [], doubled
            else:
                self.state = "rest"

    def _begin_key(self, above: TomlPath) -> None:
        self.state, self.here, self.parts, self.dotted = "key", above, 0, True

    def _key_part(self, word: str) -> None:
        self.parts += 1
        self.dotted = False
        if self.parts > self.deepest[1]:
            self.deepest = (self.line, self.parts)
        if self.parts > DEEPEST:
            return
        if self.state == "header":
            self.header.append(_decoded(word))
        else:
            self.here = self._note(self.here, _decoded(word))

    def _end_header(self) -> None:
        self.table, self.state = (), "rest"
        for index, part in enumerate(self.header):
            self.table = self._note(self.table, part)
            if self.many and index == len(self.header) - 1:
                self.counts[self.table] = self.counts.get(self.table, -1) + 1
            if self.table in self.counts:  # `[a.b]` below `[[a]]` belongs to the last of them
                self.table = self._note(self.table, self.counts[self.table])

    def _value(self, word: str) -> None:
        """Take a token of a value, or what stands between the values of a list or an inline table."""
        if word in ("]", "}"):
            if self.opened:
                self.opened.pop()
            self.state, self.element_next = "value" if self.opened else "rest", False
            return
        if word == "," and self.opened:
            above, index = self.opened[-1]
            self.element_next = index >= 0
            if index < 0:
                self._begin_key(above)
            return
        if self.element_next:
            above, index = self.opened[-1]
            self.opened[-1] = (above, index + 1)
            self.here, self.element_next = self._note(above, index), False
        if word == "[":
            self.opened.append((self.here, 0))
            self.element_next = True
        elif word == "{":
            self.opened.append((self.here, -1))
            self._begin_key(self.here)

    def _note(self, above: TomlPath, part: str | int) -> TomlPath:
        """The path of `part`; its line is stored the first time."""
        path = (*above, part) if len(above) < DEEPEST else above
        self.lines.setdefault(path, self.line)
        return path


def _decoded(name: str) -> str:
    if name[0] not in "\"'":
        return name
    try:
        return str(tomllib.loads(f"k = {name}")["k"])
    except ValueError:
        return name[1:-1]
