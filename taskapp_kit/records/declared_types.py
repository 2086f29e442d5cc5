"""Checks of values from files and servers against the types that a dataclass declares."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType
from typing import Any

_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "dict": (dict,),
    "Mapping": (dict,),
    "list": (list,),
    "Sequence": (list, tuple),
}
_MODEL_USE = {
    "role": "str",
    "model": "str",
    "calls": "int",
    "tokens": "float",
    "cost": "float | None",
    "unpriced_calls": "int",
    "unpriced_tokens": "float",
}
"""The fields of a `ModelUse`."""
_ANYTHING = ("Json", "bytes")


def check_types(kind: type, values: Mapping[str, Any]) -> None:
    """Raise TypeError if a field of `kind` has a value of another type than declared. The message names the field.

    Numbers must be finite. A boolean is not a number.
    """
    fits = _members(kind)
    for name, value in values.items():
        if not fits[name](value):
            raise TypeError(f"{name} is not {kind.__annotations__[name]}")


@cache
def _members(kind: type) -> dict[str, Callable[[Any], bool]]:
    return {name: _check(declared) for name, declared in kind.__annotations__.items()}


def _check(declared: str) -> Callable[[Any], bool]:
    """Return a function that checks a value against a type. declared: The type as source code, such as `int | None`."""
    if declared in _ANYTHING:
        return lambda value: True
    if declared == "ModelUse":
        members = {name: _check(kind) for name, kind in _MODEL_USE.items()}
        return lambda value: type(value) is dict and all(fit(value.get(name)) for name, fit in members.items())
    base = declared.removesuffix(" | None")
    outer, _, inside = base.partition("[")
    types = (*_KINDS[outer], NoneType) if base != declared else _KINDS[outer]
    if not inside:
        return lambda value: type(value) in types and (type(value) is not float or math.isfinite(value))
    item = inside.removesuffix("]").removeprefix("str, ")
    if item in _ANYTHING:
        return lambda value: type(value) in types
    member = _check(item)

    def fits(value: Any) -> bool:
        if type(value) not in types:
            return False
        return all(map(member, value.values() if type(value) is dict else value or ()))

    return fits
