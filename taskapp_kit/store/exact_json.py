"""Checks of values before they are stored: refuses what would not be read back equal."""

from __future__ import annotations

from typing import Any

import orjson

from taskapp_kit.records.content import Json, has_surrogate

# By default orjson writes a dataclass as an object and a datetime as text, which reads back as something else.
_STRICT = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


class Inexact(ValueError):
    """A value would not be read back from the store equal. The message names its path and what it is."""


def exact_json(value: Json, name: str) -> bytes:
    """`value` as JSON that reads back equal to it, bytes in UTF-8. Raises Inexact, naming the field.

    The writer alone is not enough: it silently turns NaN into null and tuples into lists. Whoever makes a record has
    checked its values before (`contract.content.plain`) and named the place of a fault.
    """
    try:
        written = orjson.dumps(value, option=_STRICT)
        if orjson.loads(written) == value:
            return written
    except (TypeError, ValueError, RecursionError):
        pass
    raise Inexact(f"{name} does not read back as it was written")


def exact_text(value: Any, name: str, *, optional: bool) -> str | None:
    """A text column's value. Raises Inexact."""
    if value is None and optional:
        return None
    if not isinstance(value, str):
        raise Inexact(f"{name} is {type(value).__name__}, expected a str")
    if has_surrogate(value):
        raise Inexact(f"{name} holds a lone surrogate, which is not valid text")
    return str(value)


def exact_int(value: Any, name: str) -> int:
    """An integer column's value. Raises Inexact."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise Inexact(f"{name} is {type(value).__name__}, expected an int")
    if not -(2**63) <= value < 2**63:
        raise Inexact(f"{name} is an integer beyond 64 bits")
    return int(value)


def exact_float(value: Any, name: str, *, optional: bool) -> float | None:
    """A number column's value as a finite float; SQLite would store NaN as NULL. Raises Inexact."""
    if type(value) is float:
        # True for NaN and both infinities, without a call: each rollout has many numbers.
        if value - value != 0.0:
            raise Inexact(f"{name} is {value}, which is not a finite number")
        return value
    if value is None and optional:
        return None
    if type(value) is not int:
        raise Inexact(f"{name} is {type(value).__name__}, expected a float")
    if abs(value) > 2**53:
        raise Inexact(f"{name} is an integer that a float cannot hold exactly")
    return float(value)
