"""Reads the TOML file of a config, and adds line numbers to messages about it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taskapp_kit.errors import JobConfigError
from taskapp_kit.jobs.client.config.review import Document
from taskapp_kit.jobs.client.config.values import KEY_TEXT, Place, in_one_line

MAX_BYTES = 1024 * 1024
LONG_KEY = re.compile(r"""(?<![\w.-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){32,}+""")
"""A key with more than 32 dotted parts, because the parser's time grows with the square of their number."""
QUOTED = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}' + r"|'''.*?'{3,5}" + r'|"(?:\\.|[^"\\\n])*+"' + r"|'[^'\n]*+'|#[^\n]*+", re.DOTALL
)
"""A quoted string or a comment."""
MAX_SENTENCES = 100
TOML_NAMES, TOML_NAME = re.compile(r"\('[^()]*'\)|\('[^()]*',\)"), re.compile(r"'([^']*)'")
TOML_PLACE = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)\s*$")


def read_toml(path: Path, what: str) -> tuple[Document, Mapping[Place, int]]:
    """Return a file's document, and the line of each key. what: The kind of file for messages, such as `RL config`.

    Raises FileNotFoundError if the file does not exist, and JobConfigError if it cannot be read or is not TOML.
    """
    text = _text(path, what)
    return _parsed(text, path, what), lines_of(text)


def lines_of(text: str) -> dict[Place, int]:
    """Return the line of each header, each key, and each list element that begins a line. The text must be valid TOML.

    A header `[a.b]` sets the lines of `("a",)` and `("a", "b")`. The n-th `[[a]]` and the n-th element of a list are
    `("a", n)`. Parts nested deeper in a value have no entry.
    """
    text = text.replace("\r\n", "\n")
    masked = QUOTED.sub(lambda quoted: (" " if quoted[0][0] == "#" else "_") * len(quoted[0]), text)
    lines: dict[Place, int] = {}
    counts: dict[Place, int] = {}
    table: Place = ()
    place: Place = ()
    start, line, depth, element = 0, 1, 0, 0
    for row in masked.split("\n"):
        written, code = text[start : start + len(row)], row.strip()
        if depth == 1 and code and code[0] not in "],":
            lines.setdefault((*place, element), line)
        elif not depth and code:
            is_header, element = code[0] == "[", 0
            names = _names(written if is_header else f"{written[: row.index('=')]} = 0")
            place = () if is_header else table
            for number, name in enumerate(names, start=1):
                place = (*place, name)
                lines.setdefault(place, line)
                if number == len(names) and code.startswith("[["):
                    counts[place] = counts.get(place, -1) + 1
                if place in counts:  # `[a.b]` below `[[a]]` belongs to the last `[[a]]`
                    place = (*place, counts[place])
                    lines.setdefault(place, line)
            table = place if is_header else table
        for mark in re.findall(r"[][{},]", code):
            depth += (mark in "[{") - (mark in "]}")
            element += mark == "," and depth == 1
        start += len(row) + 1
        line += written.count("\n") + 1
    return lines


def _names(statement: str) -> list[str]:
    """Return the parts of a header, or the parts of the key in `KEY = 0`."""
    names: list[str] = []
    inner: Any = tomllib.loads(statement)
    while isinstance(inner, dict) and inner:
        ((name, inner),) = inner.items()
        names.append(name)
    return names


def sentences(remarks: Mapping[Place, str], lines: Mapping[Place, int], changed: frozenset[Place]) -> tuple[str, ...]:
    """Return each remark with its line, ordered by line. Remarks about overrides or without a line come last."""
    placed = [(_line(place, lines, changed), text) for place, text in remarks.items()]
    placed.sort(key=lambda remark: (remark[0] <= 0, remark[0]))
    made = []
    for line, text in placed[:MAX_SENTENCES]:
        where = f"line {line}: " if line > 0 else "overrides: " if line < 0 else ""
        made.append(where + text)
    if len(placed) > MAX_SENTENCES:
        made.append(f"… and {len(placed) - MAX_SENTENCES} more")
    return tuple(made)


def _line(place: Place, lines: Mapping[Place, int], changed: frozenset[Place]) -> int:
    """Return the line of a key, or of the section around it. Return 0 if neither has a line, and -1 for an override."""
    while place:
        if place in changed:
            return -1
        if place in lines:
            return lines[place]
        place = place[:-1]
    return 0


def _text(path: Path, what: str) -> str:
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise FileNotFoundError(f"The {what} {path} does not exist. Pass the path of a TOML file.") from None
    except IsADirectoryError:
        raise JobConfigError(f"{path} is a directory.", hint="Pass the path of a TOML file.") from None
    except OSError as error:
        raise JobConfigError(f"{path} cannot be read ({error.strerror}).", hint="Check its permissions.") from None
    except ValueError:
        raise JobConfigError(f"The path of the {what} contains a null byte.", hint="Pass the path of a file.") from None
    if len(content) > MAX_BYTES:
        raise JobConfigError(
            f"{path} is larger than {MAX_BYTES // 1024} KiB.",
            hint="A config is a short TOML file. Check the path.",
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        what = "UTF-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "another encoding"
        raise JobConfigError(
            f"{path} is not UTF-8 text (line {line}; {what}).", hint="Save the file as UTF-8."
        ) from None


def _parsed(text: str, path: Path, what: str) -> Document:
    if long_key := LONG_KEY.search(text):
        line, parts = text.count("\n", 0, long_key.start()) + 1, long_key[0].count(".") + 1
        problem = f"line {line}: found a key with {parts} dotted parts; expected at most 32. Shorten the key."
        raise JobConfigError(f"{path} cannot be used as an {what}:", problems=(problem,))
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problem = _toml_problem(str(error), text)
    except RecursionError:
        problem = "a list or table is nested too deeply. Use fewer levels."
    except ValueError:  # a number with thousands of digits, or a date such as February 30
        problem = "a number or a date is invalid. Use numbers of at most 64 bits, and write dates in quotes."
    raise JobConfigError(f"{path} is not TOML:", problems=(problem,))


def _toml_problem(message: str, text: str) -> str:
    found = TOML_PLACE.search(message)
    reason = in_one_line(message[: found.start()] if found else message)
    reason = TOML_NAMES.sub(lambda names: "[" + ".".join(TOML_NAME.findall(names[0])) + "]", reason)
    reason = "it cannot be read" if KEY_TEXT.search(reason) or len(reason) > 200 else reason[:1].lower() + reason[1:]
    if found is None or found[1] is None:
        where = f"line {text.rstrip().count(chr(10)) + 1}, the end of the file"
    else:
        where = f"line {found[1]}, column {found[2]}"
    if "overwrite" in reason or "declare" in reason or "duplicate" in reason or "twice" in reason:
        do = "A section or key is defined twice. Remove one of them."
    elif "invalid value" in reason:
        do = "Write strings in quotes, booleans as true or false, and lists in [ ]."
    elif "string" in reason or "array" in reason:
        do = "Close every quote, and close every [ with ]."
    else:
        do = 'Each line must be [section], key = value, or a comment that begins with #. Write strings in "quotes".'
    return f"{where}: {reason}. {do}"
