"""Formats values and names of an RL config for messages: short, on one line, and without API keys."""

from __future__ import annotations

import re
from typing import Any

from taskapp_kit.jobs.client.config.schema import SECTIONS
from taskapp_kit.jobs.client.config.value_types import MAX_INTEGER

Place = tuple[str | int, ...]

MAX_SHOWN = 60
HIDDEN = "a value that is not shown"

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
    """Return whether `value` is a string that looks like an API key or has a name such as `api_key`.

    The name of an environment variable, such as `OPENAI_API_KEY`, is not a key.
    """
    if not isinstance(value, str) or not value.strip() or VARIABLE_NAME.fullmatch(value):
        return False
    return SECRET_NAME.search(name) is not None or KEY_TEXT.search(value) is not None


def shown(name: str, value: Any) -> str:
    """Format a value for a message. name: The name of its key."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)) and (SECRET_NAME.search(name) or is_key_like(name, value)):
        return HIDDEN
    if isinstance(value, str):
        if len(value) > MAX_SHOWN:
            return f"a string of {len(value)} characters"
        return '"' + in_one_line(value) + '"' if value.strip() else "an empty string"
    if isinstance(value, int):
        return str(value) if abs(value) <= MAX_INTEGER else "a number with too many digits"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    return "nothing" if value is None else f"a {type(value).__name__}"


def name_shown(name: str) -> str:
    """Format a key's name for a message."""
    return "(a name that is not shown)" if len(name) > MAX_SHOWN or KEY_TEXT.search(name) else in_one_line(name)


def place_shown(place: Place) -> str:
    """Format a path for a message, such as `[training.lora] r` or `[evaluation] seeds[1]`."""
    names = [part for part in place if isinstance(part, str)]
    if len(place) == 1 and names and names[0] not in SECTIONS:
        return name_shown(names[0])
    index = place[len(names) :] if all(isinstance(part, str) for part in place[: len(names)]) else ()
    numbers = "".join(f"[{part}]" for part in index)
    known = (length for length in range(len(names), 0, -1) if ".".join(names[:length]) in SECTIONS)
    cut = next(known, max(1, len(names) - 1))
    section, key = ".".join(map(name_shown, names[:cut])), ".".join(map(name_shown, names[cut:]))
    return f"[{section}] {key}{numbers}" if key else f"[{section}]{numbers}"


def last_name(place: Place) -> str:
    """Return the last name in a path, or an empty string if the path has only indexes."""
    return next((part for part in reversed(place) if isinstance(part, str)), "")


def in_one_line(text: str) -> str:
    """Return the text with an escape for each character that is not printable."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)
