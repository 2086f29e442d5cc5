"""`@action`, which marks a method as an action. `freeze` reads the marks."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

F = TypeVar("F", bound=Callable[..., Any])
ATTRIBUTE = "__taskapp_action__"
PROBLEMS = "__taskapp_problems__"
"""Class attribute in which an adapter that could not build the class stores the problems for `freeze` to report."""


@dataclass(frozen=True, slots=True)
class ActionMark:
    """The options of one `@action`."""

    name: str | None = None
    text: bool = False
    noop: Mapping[str, Any] | None = None
    sample: Callable[[random.Random], Any] | None = None
    keys: Mapping[str, Mapping[str, Any]] | None = None
    unknown: tuple[str, ...] = ()
    """Keywords that `@action` does not accept. `freeze` reports each as a problem."""


@overload
def action(function: F, /) -> F: ...
@overload
def action(
    *,
    name: str | None = None,
    text: bool = False,
    noop: Mapping[str, Any] | None = None,
    sample: Callable[[random.Random], Any] | None = None,
    keys: Mapping[str, Mapping[str, Any]] | None = None,
) -> Callable[[F], F]: ...
def action(
    function: F | None = None,
    /,
    *,
    name: str | None = None,
    text: bool = False,
    noop: Mapping[str, Any] | None = None,
    sample: Callable[[random.Random], Any] | None = None,
    keys: Mapping[str, Mapping[str, Any]] | None = None,
    **unknown: Any,
) -> F | Callable[[F], F]:
    """Mark a method as an action, and return it unchanged.

    Args:
        function: The method. Its docstring is the tool's description.
        name: Name of the tool. Defaults to the method's name.
        text: Whether the action receives the model's plain text. The method must then have exactly one parameter, a
            str.
        noop: Arguments with which the action changes nothing. The `noop` policy uses them.
        sample: `fn(rng) -> args`, with which the `random` policy draws arguments, for example strings without a limit.
        keys: Arguments by keyboard key, for people who play in the viewer. Keys have the names that browsers use:
            `{"a": {"direction": "left"}, "ArrowLeft": {"direction": "left"}}`.
    """
    mark = ActionMark(name, text, noop, sample, keys, tuple(unknown))

    def marked(method: F) -> F:
        setattr(method, ATTRIBUTE, mark)
        return method

    return marked if function is None else marked(function)


def actions_of(cls: type) -> list[tuple[str, ActionMark, str]]:
    """Return the actions of a class as (tool name, mark, method name), base classes first.

    A method that overrides an action has the position of the base class's method. It inherits the mark unless it has
    its own mark. Overriding an action with None removes it.
    """
    marks: dict[str, ActionMark] = {}
    for base in reversed(cls.__mro__):
        for attribute, value in vars(base).items():
            mark = getattr(value, ATTRIBUTE, None) or getattr(getattr(value, "__func__", None), ATTRIBUTE, None)
            if mark is not None:
                marks[attribute] = mark
            elif attribute in marks and value is None:
                del marks[attribute]
    return [(mark.name or attribute, mark, attribute) for attribute, mark in marks.items()]
