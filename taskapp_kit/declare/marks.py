"""`@action`: marks a function, nothing else. The app collects the marks at freeze."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

F = TypeVar("F", bound=Callable[..., Any])
ATTRIBUTE = "__taskapp_action__"
PROBLEMS = "__taskapp_problems__"
"""On a class that an adapter could not build: its problems, for the report of the app that declares it."""


@dataclass(frozen=True, slots=True)
class ActionMark:
    """The options given to `@action`."""

    name: str | None = None
    text: bool = False
    noop: Mapping[str, Any] | None = None
    sample: Callable[[random.Random], Any] | None = None
    keys: Mapping[str, Mapping[str, Any]] | None = None
    unknown: tuple[str, ...] = ()
    """Keywords that `@action` does not take: freeze reports each as a problem."""


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
    """Mark a method as an action; returns the method unchanged.

    Args:
        function: the method; its docstring is the tool's description.
        name: the tool's name, the method's own by default.
        text: the action takes the assistant's plain text (its one parameter is a str).
        noop: arguments that change nothing; the `noop` policy plays them.
        sample: `fn(rng) -> args`, how the `random` policy draws arguments that have no bounds.
        keys: what a key does for a person who plays in the viewer, by its name in browsers: `{"a": {"direction":
            "left"}, "ArrowLeft": {"direction": "left"}}`.
    """
    mark = ActionMark(name, text, noop, sample, keys, tuple(unknown))

    def marked(method: F) -> F:
        setattr(method, ATTRIBUTE, mark)
        return method

    return marked if function is None else marked(function)


def actions_of(cls: type) -> list[tuple[str, ActionMark, str]]:
    """Return the actions of a class as (tool name, mark, method name), base classes first, overrides in their base's place.

    An override without a mark of its own keeps the inherited one; an override with None takes the action away.
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
