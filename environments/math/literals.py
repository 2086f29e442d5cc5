r"""Parses literals in an answer, without computing anything: its wrapping, numbers, lists of numbers, `\boxed{}`.

Numbers are literals such as `1,000`, `-3.50`, `7/2`, `\frac{7}{2}`, `1 1/2` and `1.5e3`. `3+4` and `2^10` are not
numbers, so that neither a repeated question nor a tower of powers is ever computed. Units, and digits other than 0 to
9, are refused.
"""

from __future__ import annotations

import re
from fractions import Fraction

from .spelling import spelled

MAX_ANSWER_CHARACTERS = 1000
"""Maximum length of an answer. A longer answer is refused without being parsed."""

_WRAPPINGS = (
    ("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"),
)  # fmt: skip

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.[0-9]*)?|\.[0-9]+)"
_POWER = r"\s*(?:\^|\*\*)\s*(?:\{{\s*(?P<{0}braced>[+-]?\s*[0-9]{{1,3}})\s*\}}|(?P<{0}bare>[+-]?[0-9]{{1,3}}))"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)\s*(?:\$\s*)?(?P<later>-?)\s*(?:"
    rf"(?P<over>{_DECIMAL})\s*/\s*(?P<under>{_DECIMAL})"
    rf"|(?P<wholes>[0-9]+)(?:\s+(?P<part>[0-9]+)\s*/\s*(?P<parts>[0-9]+)"
    rf"|\s*\\frac\s*(?:\{{\s*(?P<mixed>[0-9]+)\s*\}}|(?P<mix>[0-9]))\s*(?:\{{\s*(?P<mixer>[0-9]+)\s*\}}|(?P<mixes>[0-9])))"
    rf"|\\frac\s*(?:\{{\s*(?P<top>-?\s*{_DECIMAL})\s*\}}|(?P<tip>[0-9]))\s*"
    rf"(?:\{{\s*(?P<bottom>{_DECIMAL})\s*\}}|(?P<base>[0-9]))"
    rf"|(?P<first>[0-9]*)\.(?P<fixed>[0-9]*)\\overline\s*\{{\s*(?P<repeated>[0-9]+)\s*\}}"
    rf"|10(?!\s*(?:\^|\*\*)\s*\{{?[01]\}}?$){_POWER.format('alone_')}"
    rf"|(?P<decimal>{_DECIMAL})(?:[eE](?P<power>[+-]?[0-9]{{1,3}})"
    rf"|\s*(?:\\times|\\cdot|\*|x)\s*10{_POWER.format('times_')})?"
    r")"
)
_NAMED = re.compile(r"([A-Za-z])(?:_\{?[0-9]\}?)?\s*=\s*")
_DOLLAR = "\uff04"
"""Replaces dollar signs that do not delimit LaTeX."""
_BOX = "\\boxed{"
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


_POWERS = ("power", "times_braced", "times_bare", "alone_braced", "alone_bare")


class Unreadable(Exception):
    """The text is not an answer of the expected kind. The message describes for readers what was found."""


def cleaned(text: str) -> str:
    r"""Return the answer without its wrapping: space, `$…$`, `\(…\)`, one `\boxed{…}`, `**`, a full stop at the end.

    Raises Unreadable when it is longer than MAX_ANSWER_CHARACTERS, has several different boxes, or control characters.
    """
    if len(text) > MAX_ANSWER_CHARACTERS:
        raise Unreadable(f"the answer has {len(text)} characters; at most {MAX_ANSWER_CHARACTERS} are read")
    text = text.strip()
    while _BOX in text:
        text = boxed(text)
    text = text.replace("\\$", _DOLLAR)
    if any(character < " " or character == "\x7f" for character in text):
        raise Unreadable("the answer has control characters or several lines")
    for _ in range(3):
        before, text = text, text.strip()
        if text.endswith(".") and not text.endswith(".."):
            text = text[:-1].rstrip()
        for left, right in _WRAPPINGS:
            inner = text[len(left) : -len(right)]
            if text.startswith(left) and text.endswith(right) and inner and left not in inner and right not in inner:
                text = inner.strip()
        if text == before:
            break
    return spelled(text.replace(_DOLLAR, "$")).removesuffix(" .")


def boxed(text: str) -> str:
    r"""Return the content of the `\boxed{…}` of a text; a box may be repeated with the same content. One pass over the text.

    Only the text after the last `</think>` is searched. Raises Unreadable: no box, or boxes that differ.
    """
    _, closed, after = text.rpartition("</think>")
    text = after if closed else text
    found: str | None = None
    at = text.find(_BOX)
    while at != -1:
        start = at + len(_BOX)
        end = _closing(text, start)
        inner = text[start:end].strip()
        if found is not None and inner != found:
            raise Unreadable("there are several \\boxed{...} in it that differ; give one")
        found = inner
        at = text.find(_BOX, end)
    if found is None:
        raise Unreadable("there is no \\boxed{...} in it")
    return found


def _closing(text: str, start: int) -> int:
    """Return the end of the brace that was opened before `start`. Raises Unreadable if it exceeds an answer's length."""
    depth = 1
    for found in _BRACE.finditer(text, start, start + MAX_ANSWER_CHARACTERS + 1):
        if found[0] in "{}":
            depth += 1 if found[0] == "{" else -1
            if depth == 0:
                return found.start()
    raise Unreadable(f"a \\boxed{{ is not closed within {MAX_ANSWER_CHARACTERS} characters")


def number(text: str) -> Fraction:
    """Parse a number. Raises Unreadable."""
    found = _NUMBER.fullmatch(text.strip())
    if found is None or (found["sign"] and found["later"]):
        raise Unreadable("it is not one number")
    try:
        value = _value(found)
    except ZeroDivisionError:
        raise Unreadable("it divides by zero") from None
    return -value if "-" in (found["sign"], found["later"]) else value


def _value(found: re.Match[str]) -> Fraction:
    if found["over"]:
        return _plain(found["over"]) / _plain(found["under"])
    if found["part"]:
        return int(found["wholes"]) + Fraction(int(found["part"]), int(found["parts"]))
    if mixed := found["mixed"] or found["mix"]:
        return int(found["wholes"]) + Fraction(int(mixed), int(found["mixer"] or found["mixes"]))
    if top := found["top"] or found["tip"]:
        top = top.replace(" ", "")
        bottom = _plain(found["bottom"] or found["base"])
        return (-_plain(top[1:]) if top.startswith("-") else _plain(top)) / bottom
    if found["repeated"]:
        fixed, repeated = found["fixed"], found["repeated"]
        tail = Fraction(int(repeated), 10 ** len(repeated) - 1)
        return int(found["first"] or 0) + (int(fixed or 0) + tail) / Fraction(10 ** len(fixed))
    power = next((found[name] for name in _POWERS if found[name]), "0").replace(" ", "")
    return _plain(found["decimal"] or "1") * Fraction(10) ** int(power)


def _plain(digits: str) -> Fraction:
    return Fraction(re.sub(r"[^0-9.]", "", digits))


def unnamed(text: str, variable: str | None = None) -> str:
    """Return the text without a leading name: `x = 3` as `3`. variable: the only name that is removed; any when None."""
    found = _NAMED.match(text)
    if found is None or (variable is not None and found[1] != variable):
        return text
    return text[found.end() :]


def numbers(text: str, variable: str | None = None) -> tuple[Fraction, ...]:
    """Parse a list of numbers separated by commas, with or without brackets; ascending. Raises Unreadable.

    An empty list is the empty text. A comma always separates here, so thousands are written without one.
    """
    text = text.strip().strip('"').strip()
    for left, right in (("\\{", "\\}"), ("[", "]"), ("{", "}")):
        if text.startswith(left) and text.endswith(right) and len(text) >= len(left) + len(right):
            text = text[len(left) : -len(right)].strip()
            break
    if not text:
        return ()
    return tuple(sorted(number(unnamed(part.strip(), variable)) for part in text.split(",")))
