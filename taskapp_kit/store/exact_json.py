"""Checks of values before they are stored: refuses JSON that would not be read back equal, and API keys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import orjson

from taskapp_kit.contract.content import Json, has_surrogate
from taskapp_kit.errors import StoreRefusal

DEEPEST = 250
"""The nesting limit of the JSON writer."""

_STRICT = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME

_KEY_NAMES = re.compile(
    r"^(x_)?(api_?key|authorization|auth|proxy_authorization|token|access_token|auth_token|bearer(_token)?|secrets?"
    r"|password|passwd|credentials?|cookies?|(extra_|default_)?headers)$|_(api_?key|secret|password)$"
)
_ADDRESS = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_ALLOWED_IN_QUERY = frozenset({"cid"})


class Inexact(ValueError):
    """A value would not be read back from the store equal. The message names its path and what it is."""


def exact_json(value: Json, name: str) -> bytes:
    """`value` as JSON that reads back equal to it, bytes in UTF-8. Raises Inexact, naming the path under `name`.

    The writer alone is not enough: it silently turns NaN into null and tuples into lists. Reading the result back and
    comparing costs about as much as checking each value in Python, and misses nothing.
    """
    try:
        written = orjson.dumps(value, option=_STRICT)
        if orjson.loads(written) == value:
            return written
    except (TypeError, ValueError, RecursionError):
        pass
    raise Inexact(next(_faults(value, name, 0), f"{name} does not read back as it was written"))


def _faults(value: Any, path: str, depth: int) -> Iterator[str]:
    """The places in `value` that JSON cannot hold, as sentences."""
    kind = type(value)
    if depth > DEEPEST:
        yield f"a value in {path.partition('.')[0].partition('[')[0]} is nested more than {DEEPEST} deep"
    elif kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                yield f"{path} has the key {key!r} of type {type(key).__name__}; keys are str"
            elif has_surrogate(key):
                yield f"{path} has a key that holds a lone surrogate, which is not valid text"
            else:
                yield from _faults(item, f"{path}.{key}", depth + 1)
    elif kind is list:
        for index, item in enumerate(value):
            yield from _faults(item, f"{path}[{index}]", depth + 1)
    elif kind is float:
        if value - value != 0.0:
            yield f"{path} is {value}, which is not a finite number"
    elif kind is int:
        if not -(2**63) <= value < 2**64:
            yield f"{path} is an integer beyond 64 bits"
    elif kind is str:
        if has_surrogate(value):
            yield f"{path} holds a lone surrogate, which is not valid text"
    elif value is not None and kind is not bool:
        yield f"{path} is a {kind.__module__}.{kind.__qualname__}, which is not plain JSON"


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


def refuse_keys(policy: Mapping[str, Json], rollout_id: str) -> None:
    """Raises StoreRefusal when `policy` has a field that holds a key, as a second check before the store.

    The first check is an allow-list of the fields of `policy`. A field that gets past it is a bug of the kit, and refusing
    the rollout is better than a key on disk. Checked are the names of the fields, whether or not they look secret, and
    addresses (user:password@, a query other than `cid`); a policy's actions (`action`, `actions`) are not. The message
    names the field, never its value.
    """
    for name, value in policy.items():
        if not value or name in ("action", "actions"):
            continue
        found = ""
        if _KEY_NAMES.search(name.lower().replace("-", "_")):
            found = "is a field that holds a key"
        elif isinstance(value, str) and _ADDRESS.match(value) and not _clean_address(value):
            found = "is an address with a user name, a password or a query"
        if found:
            raise StoreRefusal(
                f"rollout {rollout_id!r} was not stored: policy.{name} {found}, and keys are never stored.",
                hint=f"Leave out policy.{name} before you save the rollout.",
            )


def _clean_address(address: str) -> bool:
    try:
        parts = urlsplit(address)
        if "@" in parts.netloc:
            return False
        return all(name in _ALLOWED_IN_QUERY for name, _ in parse_qsl(parts.query, keep_blank_values=True))
    except ValueError:
        return False
