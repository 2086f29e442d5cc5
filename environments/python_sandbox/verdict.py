"""Parses and judges the output of a judge's box, without trusting it. This module does not import the kit.

The right answers are in the server's process, never in the box. A submission can manipulate the judge's program or
Python itself and so change the output. But a test passes only if the output contains the right answer.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from .checkers import CHECKERS

RIGHT, WRONG, MISSING, MALFORMED = "right", "wrong", "missing", "malformed"
OUTCOMES = ("odd", "raised", "absent", "late", "ended", "long")
"""The outcomes that the judge's program reports for a case without a result; see `judge_inside.py`."""

_LINE = re.compile(rb"(0|[1-9][0-9]{0,5}) (.*)", re.DOTALL)


def read_answers(output: bytes, *, cut: bool, count: int) -> list[tuple[str, Any]]:
    """(word, value) for each of `count` cases: "value" with what was returned, else one of OUTCOMES, MISSING, MALFORMED.

    output: all lines of the box. cut: whether there were more bytes than it may write. A line that belongs to no case
    invalidates all of them, since it may replace any line; a second line for a case invalidates that case.
    """
    *lines, rest = output.split(b"\n")
    found: dict[int, tuple[str, Any]] = {}
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None or int(match[1]) >= count:
            return [(MALFORMED, None)] * count
        number = int(match[1])
        found[number] = (MALFORMED, None) if number in found else _read(match[2])
    if rest or cut:
        return [(MALFORMED, None)] * count
    return [found.get(number, (MISSING, None)) for number in range(count)]


def _read(text: bytes) -> tuple[str, Any]:
    try:
        answer = json.loads(text.decode("ascii"), parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return MALFORMED, None
    if type(answer) is list and len(answer) == 1 and type(answer[0]) is str and answer[0] in OUTCOMES:
        return answer[0], None
    if type(answer) is list and len(answer) == 2 and answer[0] == "value":
        return "value", answer[1]
    return MALFORMED, None


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number beyond the range of a float")
    return number


def same(one: Any, other: Any) -> bool:
    """Equality of plain JSON values, types included: True is not 1, 1 is not 1.0."""
    if type(one) is not type(other):
        return False
    if type(one) is list:
        return len(one) == len(other) and all(map(same, one, other))
    if type(one) is dict:
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    return bool(one == other)


def judge(cases: Sequence[tuple[list[Any], Any]], answers: Sequence[tuple[str, Any]], checker: str | None) -> list[str]:
    """Return the outcome of each case: RIGHT, WRONG, or why there was no value.

    cases: (arguments, expected result). checker: the name of the property that decides, None for equality.
    """
    words = []
    for (arguments, expected), (word, value) in zip(cases, answers, strict=True):
        if word == "value":
            holds = CHECKERS[checker](arguments, expected, value) if checker else same(expected, value)
            word = RIGHT if holds else WRONG
        words.append(word)
    return words
