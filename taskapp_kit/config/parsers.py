"""Parsers of settings. Each parser raises UnusableValue for an invalid value."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

MAX_KEY_BYTES = 512
SERVER_ONLY = ("ENVIRONMENT_API_KEY", "DEV_ENVIRONMENT_API_KEY", "SYNTH_API_KEY")
"""Prefixes of the variables that contain the server's keys. Processes that run environments do not need them."""
BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


class UnusableValue(ValueError):
    """Raised if a value is invalid. The message states what was expected, and never contains the value."""


def read_key(value: Any) -> str:
    """Parse one API key."""
    text = read_text(value)
    if "," in text:
        raise UnusableValue("a key without commas (use ENVIRONMENT_API_KEY_ALIASES for additional keys)")
    if len(text.encode("utf-8", "replace")) > MAX_KEY_BYTES:
        raise UnusableValue(f"a key of at most {MAX_KEY_BYTES} bytes")
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise UnusableValue("a key without control characters or line breaks")
    return text


def _parts(value: Any) -> list[Any]:
    parts = value if isinstance(value, (list, tuple)) else read_text(value).split(",")
    return [part for part in parts if str(part).strip()]


def read_keys(value: Any) -> tuple[str, ...]:
    """Parse a comma-separated list of API keys."""
    return tuple(map(read_key, _parts(value)))


def read_list(value: Any) -> tuple[str, ...]:
    """Parse a comma-separated list of strings."""
    return tuple(map(read_text, _parts(value)))


def read_keys_for(value: Any) -> tuple[str, ...]:
    """Parse a list of HOST=VARIABLE.

    Calls to HOST receive the API key that the environment variable VARIABLE contains.
    """
    entries = read_list(value)
    for entry in entries:
        host, _, variable = entry.rpartition("=")
        if not host or not variable.isidentifier() or variable != variable.upper():
            raise UnusableValue(
                "a comma-separated list of HOST=VARIABLE, where VARIABLE is the name of an environment variable, not a key"
            )
        if variable.startswith(SERVER_ONLY):
            raise UnusableValue(
                "HOST=VARIABLE, where VARIABLE contains a model provider's key. This server's own keys are never sent"
            )
    return entries


def read_aliases(value: Any) -> tuple[str, ...]:
    """Parse a list of NAME=MODEL, in which NAME is an alias of the local model MODEL."""
    entries = read_list(value)
    if any(not name or not model for name, _, model in (entry.partition("=") for entry in entries)):
        raise UnusableValue("a comma-separated list of NAME=MODEL, such as Qwen/Qwen3-0.6B=tiny")
    return entries


def read_text(value: Any) -> str:
    """Parse a string that is not empty."""
    if not isinstance(value, str):
        raise UnusableValue("text")
    return value.strip()


def read_store_keep(value: Any) -> str:
    """Parse which rollouts the store keeps: a number of days, or a number of rollouts."""
    text = str(value).strip().lower() if not isinstance(value, bool) else ""
    number = text.removesuffix("d")
    if not number.isascii() or not number.isdigit() or len(number) > 9 or int(number) < 1:
        raise UnusableValue("a number of days such as 30d, or a number of rollouts such as 1000")
    return text


def read_path(value: Any) -> Path:
    """Parse a path. `~` is replaced with the home directory."""
    return value if isinstance(value, Path) else Path(read_text(value)).expanduser()


def integer(low: int, high: int) -> Callable[[Any], int]:
    """Return a parser of integers from `low` to `high`."""

    def read(value: Any) -> int:
        expected = f"an integer from {low} to {high}"
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise UnusableValue(expected)
        text = str(value).strip()
        if not text.isascii() or not text.isdigit() or len(text) > 18 or not low <= int(text) <= high:
            raise UnusableValue(expected)
        return int(text)

    return read


def read_seconds(value: Any) -> float:
    """Parse a duration in seconds."""
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number <= 86_400:
        raise UnusableValue("a number of seconds above 0 and at most 86400")
    return number


def read_switch(value: Any) -> bool:
    """Parse a boolean."""
    switch = value if isinstance(value, bool) else BOOLEANS.get(str(value).strip().lower())
    if switch is None:
        raise UnusableValue("one of " + ", ".join(BOOLEANS))
    return switch


def read_log_format(value: Any) -> str:
    """Parse the format of log records."""
    if (log_format := str(value).strip().lower()) not in ("text", "json"):
        raise UnusableValue("text or json")
    return log_format


def read_origins(value: Any) -> tuple[str, ...]:
    """Parse the origins of web pages. Trailing slashes are removed."""
    origins = tuple(str(part).strip().rstrip("/") for part in _parts(value))
    for origin in origins:
        address = urlsplit(origin)
        web = address.scheme in ("http", "https") and address.netloc and "@" not in origin
        if origin != "*" and (not web or address.path or address.query):
            raise UnusableValue("a comma-separated list of origins such as https://example.org, or *")
    return origins
