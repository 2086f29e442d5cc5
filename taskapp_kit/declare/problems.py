"""The collector that every check writes its problems to, and the two questions that several checks ask."""

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
    know whether what it looked at can become a spec.
    """

    def add(self, place: str, found: str, expected: str, fix: str) -> None:
        """One more: where, what is wrong there, what the kit can use, what to do."""
        self.append(Problem(place, found, expected, fix))


def check_name(declared: Declaration, problems: Problems) -> None:
    """The name of an environment has to fit an address, a table and a terminal."""
    name = declared.name
    if not name or not isinstance(name, str) or len(name) > 128 or not name.isprintable() or "/" in name:
        problems.add(declared.place, f"{declared.kind} has the name {name!r}",
                     "1 to 128 printable characters without /", "rename it")  # fmt: skip


def check_keywords(
    decorator: Callable[..., Any], shown: str, unknown: Iterable[str], place: str, problems: Problems
) -> None:
    """Each keyword that a decorator, `shown` as "@app.rubric", was given and does not take is a problem."""
    known = [item.name for item in inspect.signature(decorator).parameters.values() if item.kind is item.KEYWORD_ONLY]
    for keyword in unknown:
        problems.add(place, f"{shown} was given {keyword!r}, which it does not take",
                     f"any of {', '.join(known)}" if known else "no keywords",
                     did_you_mean(keyword, known, "remove it"))  # fmt: skip


def check_splits(shown: str, splits: Any, place: str, problems: Problems) -> bool:
    """Whether `splits`, shown as "splits=", maps names to rows; None does."""
    if splits is None or isinstance(splits, Mapping):
        return True
    problems.add(place, f"{shown}{splits!r}", "a mapping from each split's name to its rows",
                 f"write {shown}{{\"train\": …}}")  # fmt: skip
    return False


def is_number(value: Any) -> bool:
    """True for a finite int or float; a bool is no number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
