"""The tasks. A row has a kind, a level and a number, from which any process generates the same site and problem."""

from __future__ import annotations

import functools
import hashlib
import random

from pydantic import BaseModel

from .sites.catalog import KINDS
from .sites.kind import LEVELS, Level, Problem

TRAIN, TEST = 12_000, 1_200
INFEASIBLE_EVERY = 8
"""One in this many tasks of a kind is infeasible, if the kind allows infeasible tasks."""


class WebTask(BaseModel):
    """One task. `number` seeds what the site holds; `tags` are the kind, the site, the verb, and `infeasible`."""

    kind: str
    difficulty: Level
    number: int
    feasible: bool
    tags: list[str]


def rows(split: str, count: int) -> list[WebTask]:
    """Return the first `count` tasks of a split, cycling through all kinds on the first, second and third level."""
    names = sorted(KINDS)
    found = []
    for index in range(count):
        kind = KINDS[names[index % len(names)]]
        cycle = index // len(names)
        feasible = not kind.infeasible or cycle % INFEASIBLE_EVERY != INFEASIBLE_EVERY - 1
        found.append(
            WebTask(
                kind=kind.name,
                difficulty=LEVELS[cycle % len(LEVELS)],
                number=index if split == "train" else TRAIN + index,
                feasible=feasible,
                tags=[kind.name, kind.name.partition("/")[0], kind.verb, *([] if feasible else ["infeasible"])],
            )
        )
    return found


def problem(task: WebTask) -> Problem:
    """Return the site in its first state, and the problem. Two calls give two equal sites that share nothing."""
    text = f"web {task.kind} {task.difficulty} {task.number} {task.feasible}"
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    return KINDS[task.kind].make(random.Random(seed), task.difficulty, task.feasible)


@functools.lru_cache(maxsize=64)
def solution(kind: str, difficulty: Level, number: int, feasible: bool) -> Problem:
    """Return the problem for the scripted solver, which asks at every turn and changes nothing."""
    return problem(WebTask(kind=kind, difficulty=difficulty, number=number, feasible=feasible, tags=[]))
