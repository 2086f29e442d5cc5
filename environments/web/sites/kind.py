"""The definitions of a kind of task, and of a single task."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..view import View
from .site import Json, Site

Level = Literal["easy", "medium", "hard"]
LEVELS: tuple[Level, ...] = ("easy", "medium", "hard")

Verb = Literal["find", "change", "constraints"]

Action = Mapping[str, Mapping[str, Any]]
"""One action with its arguments, as a policy returns it: `{"click": {"bid": 7}}`."""


@dataclass(frozen=True)
class Problem:
    """One task: a site in its initial state, the goal as text, and the solution.

    It is solved if the episode ends with the message `answer` (None accepts any message) and the site's record equals
    `expected`. If it is not `feasible`, it is solved if the policy reports that and has changed nothing. `gold` decides the
    next action from the page, with rules that know the solution.
    """

    goal: str
    site: Site
    expected: Mapping[str, Json]
    gold: Callable[[View], Action]
    answer: str | None = None
    feasible: bool = True
    ends_on_change: bool = False
    """Whether the first change of the record ends the episode. If so, no message is needed."""


@dataclass(frozen=True)
class Kind:
    """A kind of task on three levels: more content, more distractors that nearly fit, more conditions."""

    name: str
    """The site and the task, such as `shop/order`."""
    verb: Verb
    make: Callable[[random.Random, Level, bool], Problem]
    """Creates a problem from a generator (seeded with kind, level and seed), a level, and whether it is feasible."""
    infeasible: bool = False
    """Whether the kind has infeasible tasks, for which `make` is called with feasible=False."""
