"""The declarations that an app's decorators collect, and the list to which the checks add problems."""

from __future__ import annotations

import enum
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from taskapp_kit.declare.source_location import RENAME, calling_line, did_you_mean
from taskapp_kit.declare.tasks import TaskSource
from taskapp_kit.errors import DeclarationError, LateRegistration, Problem
from taskapp_kit.records.scorecard import Blend

Names = str | Sequence[str] | None


F = TypeVar("F", bound=Callable[..., Any])

# The pair is (what the kit accepts, what to change), the last two fields of a Problem.
PRINTABLE_NAME = ("1 to 128 printable characters without /", "rename it")


class NotGiven(enum.Enum):
    """The default of an argument for which None is a meaningful value."""

    NOT_GIVEN = "not given"


NOT_GIVEN: Final = NotGiven.NOT_GIVEN


@dataclass(slots=True)
class Declaration:
    """One use of a decorator: its kind, target, options and location (`file:line`)."""

    kind: str
    name: str
    target: Any
    options: dict[str, Any]
    place: str
    environments: Names = None
    unknown: tuple[str, ...] = ()
    """Keywords that the decorator does not accept. `freeze` reports each as a problem."""


class Declarations:
    """The attributes and declarations of an app, as `freeze` and the checks read them. `TaskApp` adds the decorators.

    Attributes:
        file: The author's file.
        docstring: Docstring of the author's module.
        place: Location of the call that created the app, as `file:line`.
    """

    name: str
    version: str
    description: str
    reward: Blend | None
    system_prompt: str | None
    file: Path
    docstring: str
    place: str
    declared: list[Declaration]
    _spec: object | None
    """The result of `freeze`, or None before `freeze` has run."""

    def task_source(self, declared: Declaration) -> TaskSource:
        """Return the source of a declaration's rows."""
        return TaskSource(
            app=self.name,
            place=declared.place,
            row=cast("type | None", declared.options["row"]),
            sources={**(declared.options["tasks"] or {}), **declared.options.get("keywords", {})},
            folder=self.file.parent,
            shared=declared.options.get("rows"),
        )

    def _decorator(
        self,
        kind: str,
        function: Any,
        name: str | None,
        options: dict[str, Any],
        environment: Names,
        unknown: Mapping[str, Any],
    ) -> Any:
        place = calling_line(2)
        if function is not None and not callable(function):  # as in `@app.rubric("name")`
            found = f"@app.{kind}({function!r})"
            fix = f"write @app.{kind}(name={function!r})" if isinstance(function, str) else "pass options by keyword"
            raise DeclarationError(self.name, [Problem(place, found, f"@app.{kind}, or options by keyword", fix)])

        def decorate(target: F) -> F:
            own_name = name or str(getattr(target, "__name__", type(target).__name__))
            self._declare(Declaration(kind, own_name, target, options, place, environment, tuple(unknown)))
            return target

        return decorate if function is None else decorate(function)

    def _declare(self, declared: Declaration, *, again: bool = False) -> None:
        if self._spec is not None and not again:
            raise LateRegistration(
                f"{declared.place}: {declared.kind} {declared.name!r} was declared after the task app {self.name!r} "
                "was frozen. Earlier and later callers would see different apps.",
                hint="Declare it while the app's file is imported, before asgi() or freeze() is called.",
            )
        self.declared.append(declared)


class Problems(list[Problem]):
    """The problems of one app, in the order in which the checks find them.

    A check continues after a problem, so that the author sees all problems. It can build a spec only if it has not
    added a problem.
    """

    def add(self, place: str, found: str, expected: str, fix: str) -> None:
        """Add a problem. `found` states what is wrong, `expected` what the kit accepts, and `fix` what to change."""
        self.append(Problem(place, found, expected, fix))

    def add_untaken(self, place: str, what: str, name: str, allowed: Sequence[str], otherwise: str = RENAME) -> None:
        """Add a problem: the function `what` has the parameter `name`, which the kit does not pass."""
        found = f"{what} has the parameter {name!r}, which the kit does not pass"
        self.add(place, found, *one_of(name, allowed, otherwise=otherwise))

    def add_second(self, place: str, what: str, first: str) -> None:
        """Add a problem: `what` is already declared at the location `first`."""
        found = f"{what} is declared twice; the first declaration is at {first}"
        self.add(place, found, "one declaration for each name", "rename or remove one")


def one_of(name: object, known: Sequence[str], prefix: str = "any of", otherwise: str = RENAME) -> tuple[str, str]:
    """Return the last two fields of a Problem: the accepted names, and a suggestion for the unknown `name`."""
    return f"{prefix} {', '.join(known)}", did_you_mean(str(name), known, otherwise)


def check_name(declared: Declaration, problems: Problems) -> None:
    """Check the name of an environment. The name appears in URLs, tables and terminals."""
    name = declared.name
    if not name or not isinstance(name, str) or len(name) > 128 or not name.isprintable() or "/" in name:
        problems.add(declared.place, f"{declared.kind} has the name {name!r}", *PRINTABLE_NAME)


def check_keywords(
    decorator: Callable[..., Any], shown: str, unknown: Iterable[str], place: str, problems: Problems
) -> None:
    """Report each keyword that the decorator does not accept. `shown` names the decorator, such as "@app.rubric"."""
    known = [item.name for item in inspect.signature(decorator).parameters.values() if item.kind is item.KEYWORD_ONLY]
    for keyword in unknown:
        accepted = one_of(keyword, known, otherwise="remove it") if known else ("no keywords", "remove it")
        problems.add(place, f"{shown} does not accept {keyword!r}", *accepted)


def check_splits(shown: str, splits: Any, place: str, problems: Problems) -> bool:
    """Return whether `splits` is None or a mapping; report any other value.

    `shown` is the argument's name in the message.
    """
    if splits is None or isinstance(splits, Mapping):
        return True
    problems.add(
        place, f"{shown}{splits!r}", "a mapping from each split's name to its rows", f'write {shown}{{"train": …}}'
    )
    return False


def is_number(value: Any) -> bool:
    """Return whether the value is a finite int or float, but not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
