"""The collector to which every check adds its problems, and helpers that several checks share."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from taskapp_kit.declare.declarations import Declaration
from taskapp_kit.declare.source_location import did_you_mean
from taskapp_kit.errors import Problem


class Problems(list[Problem]):
    """The problems of one app, in the order in which the checks find them.

    A check goes on after a problem, so that the author sees all of them; it compares the length before and after to
    know whether it can build a spec.
    """

    def add(self, place: str, found: str, expected: str, fix: str) -> None:
        """Adds a problem: the place, what is wrong there, what the kit accepts, what to change."""
        self.append(Problem(place, found, expected, fix))


def check_name(declared: Declaration, problems: Problems) -> None:
    """Checks the name of an environment: it appears in URLs, tables and terminals."""
    name = declared.name
    if not name or not isinstance(name, str) or len(name) > 128 or not name.isprintable() or "/" in name:
        problems.add(declared.place, f"{declared.kind} has the name {name!r}",
                     "1 to 128 printable characters without /", "rename it")  # fmt: skip


def check_keywords(
    decorator: Callable[..., Any], shown: str, unknown: Iterable[str], place: str, problems: Problems
) -> None:
    """Reports each keyword that the decorator, shown as "@app.rubric", does not take."""
    known = [item.name for item in inspect.signature(decorator).parameters.values() if item.kind is item.KEYWORD_ONLY]
    for keyword in unknown:
        problems.add(place, f"{shown} was given {keyword!r}, which it does not take",
                     f"any of {', '.join(known)}" if known else "no keywords",
                     did_you_mean(keyword, known, "remove it"))  # fmt: skip


def check_splits(shown: str, splits: Any, place: str, problems: Problems) -> bool:
    """Whether `splits`, shown as "splits=", maps names to rows or is None."""
    if splits is None or isinstance(splits, Mapping):
        return True
    problems.add(place, f"{shown}{splits!r}", "a mapping from each split's name to its rows",
                 f"write {shown}{{\"train\": …}}")  # fmt: skip
    return False


def is_number(value: Any) -> bool:
    """True for a finite int or float; a bool does not count."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
