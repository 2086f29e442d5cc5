"""One value of an RL config: whether it fits its key, how it is told, and whether it looks like somebody's API key."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from taskapp_kit.client.config.sections import MOST, ConfigKey

Place = tuple[str | int, ...]

LONGEST_SHOWN = 60
MOST_LEVELS = 64
HIDDEN = "a value that is not shown"
ELEMENTS = {"seeds": "a whole number from 0 on", "ops": '"agent", "env", or a table with such a type'}
AGENT_WORDS = ("agent", "policy", "model")
ENV_WORDS = ("env", "environment", "step")

SECRET_NAME = re.compile(
    r"api[_-]?key|secret|passw(or)?d|passphrase|credential|authorization|bearer|(^|[_-])(key|token|auth)$",
    re.IGNORECASE,
)
KEY_TEXT = re.compile(
    r"\b(sk|pk|rk|gsk|hf|xai|r8|ghp|gho|glpat|pypi|xox[abp])[-_][A-Za-z0-9_-]{12,}"
    r"|\b(AKIA|ASIA)[A-Z0-9]{16}\b|\bAIza[A-Za-z0-9_-]{30,}|\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"
    r"|\b[Bb]earer\s+\S{8,}|^[0-9a-fA-F]{40,}$|-----BEGIN [A-Z ]*PRIVATE KEY|://[^/\s?#]*:[^/\s?#]*@"
)
VARIABLE_NAME = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")


def is_key_like(name: str, value: Any) -> bool:
    """Whether a text is an API key, by its own looks or by its name. A variable's name (`OPENAI_API_KEY`) is none."""
    if not isinstance(value, str) or not value.strip() or VARIABLE_NAME.fullmatch(value):
        return False
    return SECRET_NAME.search(name) is not None or KEY_TEXT.search(value) is not None


def shown(name: str, value: Any) -> str:
    """A value as it is told in a sentence: short, in one line, and never one that looks like a key."""
    if isinstance(value, str):
        if is_key_like(name, value) or SECRET_NAME.search(name):
            return HIDDEN
        if len(value) > LONGEST_SHOWN:
            return f"a text of {len(value)} letters"
        return '"' + in_one_line(value) + '"' if value.strip() else "an empty text"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if SECRET_NAME.search(name):
            return HIDDEN
        return str(value) if abs(value) <= MOST else "a number with too many digits"
    if isinstance(value, float):
        return HIDDEN if SECRET_NAME.search(name) else repr(value)
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    return "nothing" if value is None else f"a {type(value).__name__}"


def name_shown(name: str) -> str:
    """A key's own name, which may be anything too."""
    return "(a name that is not shown)" if len(name) > LONGEST_SHOWN or KEY_TEXT.search(name) else in_one_line(name)


def in_one_line(text: str) -> str:
    """The text with a code for each letter that is not printable."""
    return "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)


def misfits(key: ConfigKey, value: Any) -> Iterator[tuple[Place, Any, str]]:
    """What of a value does not fit its key: the place within it (() for all of it), what was found, what was expected."""
    if key.kind in ("texts", "seeds", "ops") or (key.kind == "text or texts" and isinstance(value, list)):
        if not isinstance(value, list):
            yield (), value, key.expected
            return
        for index, item in enumerate(value):
            if not _fits_in_list(key, item):
                yield (index,), item, ELEMENTS.get(key.kind, "text in quotes")
    elif not _fits(key, value):
        yield (), value, key.expected


def _fits(key: ConfigKey, value: Any) -> bool:
    if key.kind in ("text", "text or texts"):
        return isinstance(value, str) and bool(value.strip()) and (not key.choices or value in key.choices)
    if key.kind == "url":
        return isinstance(value, str) and is_address(value, bare=key.name != "inference_url")
    if key.kind == "switch":
        return isinstance(value, bool)
    if key.kind == "table":
        return isinstance(value, dict)
    if isinstance(value, bool) or not isinstance(value, int if key.kind == "whole" else (int, float)):
        return False
    return is_plain_number(value) and _within(key, value)


def _within(key: ConfigKey, value: float) -> bool:
    if key.above is not None and not value > key.above:
        return False
    return (key.low is None or value >= key.low) and (key.high is None or value <= key.high)


def _fits_in_list(key: ConfigKey, item: Any) -> bool:
    if key.kind == "seeds":
        return isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= MOST
    if key.kind == "ops":
        word = item.get("type") if isinstance(item, dict) else item
        return isinstance(word, str) and word in AGENT_WORDS + ENV_WORDS
    return isinstance(item, str) and bool(item.strip())


def is_plain_number(value: float) -> bool:
    """Whether every reader of JSON keeps it: finite, and a whole number within 64 bits."""
    return abs(value) <= MOST if isinstance(value, int) else math.isfinite(value)


def is_address(text: str, *, bare: bool) -> bool:
    """Whether it is an http address without a user. bare: without a query and a fragment, too; "" is not given yet."""
    if bare and not text.strip():
        return True
    if text != text.strip() or not text.isprintable() or " " in text:
        return False
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        return False
    return not bare or not (parts.query or parts.fragment)


def leaves(document: dict[str, Any]) -> Iterator[tuple[Place, Any]]:
    """Every value that is no table and no list, with its place; what lies deeper than `MOST_LEVELS` as a whole."""
    waiting: list[tuple[Place, Any]] = [((), document)]
    while waiting:
        place, value = waiting.pop()
        if len(place) < MOST_LEVELS and isinstance(value, dict):
            waiting += [((*place, name), inner) for name, inner in value.items()]
        elif len(place) < MOST_LEVELS and isinstance(value, list):
            waiting += [((*place, index), inner) for index, inner in enumerate(value)]
        else:
            yield place, value
