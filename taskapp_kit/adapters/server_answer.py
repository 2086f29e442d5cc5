"""What another library's server answers, read strictly: a loosely typed member is a failure, never an end or a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from taskapp_kit.contract.content import Json
from taskapp_kit.errors import TaskappError


def kind_of(value: Json) -> str:
    """Return a value's type as text."""
    return "null" if value is None else f"a {type(value).__name__}"


def flag_of(answer: Mapping[str, Json], name: str, failed: Callable[[str], TaskappError]) -> bool:
    """Return a boolean member, False if it is absent. Raises what `failed` makes of a sentence for other types."""
    value = answer.get(name, False)
    if not isinstance(value, bool):
        raise failed(f"sent a {name} that is {kind_of(value)}; expected true or false")
    return value
