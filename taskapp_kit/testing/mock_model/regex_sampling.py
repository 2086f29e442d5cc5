"""Text that a regular expression matches, drawn at random: the `pattern` of a JSON Schema."""

from __future__ import annotations

import functools
import importlib
import random
import re
from typing import Any

PRINTABLE = [chr(code) for code in range(33, 127)]
MORE_REPEATS = 3
"""An open repetition (`+`, `*`, `{2,}`) is drawn at most this much longer than its least."""
_CATEGORIES = {
    "CATEGORY_DIGIT": "0123456789",
    "CATEGORY_SPACE": " ",
    "CATEGORY_WORD": "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_",
}


def draw_match(pattern: str, rng: random.Random, shortest: int = 0, longest: int | None = None) -> str | None:
    """A text in which `pattern` is found, of a length within the bounds; None when a hundred draws brought none."""
    parsed = _parsed(pattern)
    if parsed is None:
        return None
    for attempt in range(100):
        groups: dict[int, str] = {}
        text = _sequence(parsed, rng, groups, MORE_REPEATS + (shortest if attempt % 2 else 0))
        if len(text) >= shortest and (longest is None or len(text) <= longest) and re.search(pattern, text):
            return text
    return None


@functools.lru_cache(maxsize=256)
def _parsed(pattern: str) -> Any:
    """The parse tree as the standard library makes it; None when the pattern is not one of Python's."""
    try:
        return importlib.import_module("re._parser").parse(pattern)
    except re.error:
        return None


def _sequence(parts: Any, rng: random.Random, groups: dict[int, str], more: int) -> str:
    return "".join(_part(str(name), value, rng, groups, more) for name, value in parts)


def _part(name: str, value: Any, rng: random.Random, groups: dict[int, str], more: int) -> str:
    match name:
        case "LITERAL":
            return chr(value)
        case "NOT_LITERAL":
            return rng.choice([letter for letter in PRINTABLE if letter != chr(value)])
        case "ANY":
            return rng.choice(PRINTABLE)
        case "IN":
            return rng.choice(_letters(value) or [""])
        case "BRANCH":
            return _sequence(rng.choice(value[1]), rng, groups, more)
        case "SUBPATTERN":
            text = _sequence(value[3], rng, groups, more)
            if value[0] is not None:
                groups[value[0]] = text
            return text
        case "ATOMIC_GROUP":
            return _sequence(value, rng, groups, more)
        case "GROUPREF":
            return groups.get(value, "")
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            low, high, inner = value
            times = rng.randint(int(low), min(int(high), int(low) + more))
            return "".join(_sequence(inner, rng, groups, more) for _ in range(times))
        case _:  # anchors and look-arounds add nothing; the draw is checked as a whole
            return ""


def _letters(members: Any) -> list[str]:
    """The letters of a class such as [a-z_] or [^0-9]; a negated one is taken from printable ASCII."""
    letters: list[str] = []
    negated = False
    for name, value in members:
        match str(name):
            case "NEGATE":
                negated = True
            case "LITERAL":
                letters.append(chr(value))
            case "RANGE":
                letters += [chr(code) for code in range(value[0], min(value[1], value[0] + 500) + 1)]
            case "CATEGORY":
                kind = str(value)
                within = _CATEGORIES.get(kind.replace("_NOT_", "_"), "")
                letters += [letter for letter in PRINTABLE if letter not in within] if "_NOT_" in kind else within
    return [letter for letter in PRINTABLE if letter not in letters] if negated else letters
