"""Scores of Crafter: the paper's score over many episodes, and two scores of a single one."""

import math
from collections.abc import Iterable, Mapping
from functools import cache

from .names import ACHIEVEMENTS, PREREQUISITES


@cache
def depth(achievement: str) -> int:
    """Return the rung of an achievement: 1 + the length of the longest chain of its preconditions.

    1 for one without any (`collect_wood`), 8 for `collect_diamond`. Raises KeyError for an unknown name.
    """
    return 1 + max((depth(name) for name in PREREQUISITES[achievement]), default=0)


DEPTHS: dict[str, int] = {name: depth(name) for name in ACHIEVEMENTS}
"""The weight of each achievement on the ladder, 1 to 8."""


def unlocked_share(unlocked: Iterable[str]) -> float:
    """Share of the 22 achievements unlocked in one episode, 0 to 1. Raises ValueError for an unknown name."""
    return len(_known(unlocked)) / len(ACHIEVEMENTS)


def ladder(unlocked: Iterable[str]) -> float:
    """Share of all rungs reached in one episode, 0 to 1: each achievement counts its `depth`.

    So a diamond (8) is worth eight drinks of water (1). Raises ValueError for an unknown name.
    """
    return sum(DEPTHS[name] for name in _known(unlocked)) / sum(DEPTHS.values())


def success_rates(episodes: Iterable[Iterable[str]]) -> dict[str, float]:
    """Per achievement, the percentage (0 to 100) of episodes that unlocked it at least once.

    `episodes` contains the unlocked names of each episode. Raises ValueError without episodes, or for an
    unknown name.
    """
    counts = dict.fromkeys(ACHIEVEMENTS, 0)
    total = 0
    for unlocked in episodes:
        total += 1
        for name in _known(unlocked):
            counts[name] += 1
    if total == 0:
        raise ValueError("success rates need at least one episode, and none was given")
    return {name: 100.0 * count / total for name, count in counts.items()}


def crafter_score(rates: Mapping[str, float]) -> float:
    """Return the score of the Crafter paper, in percent: exp(mean of ln(1 + s)) - 1 over the 22 rates s (percent).

    Source: Hafner, "Benchmarking the Spectrum of Agent Capabilities" (2021), section 3.
    Raises ValueError unless `rates` has exactly the 22 achievements, each between 0 and 100.
    """
    if set(rates) != set(ACHIEVEMENTS):
        odd = sorted(set(rates) ^ set(ACHIEVEMENTS))
        raise ValueError(f"the Crafter score needs the rates of exactly the 22 achievements; these differ: {odd}")
    for name, rate in rates.items():
        if not 0.0 <= rate <= 100.0:
            raise ValueError(f"the success rate of {name} is {rate}; a percentage between 0 and 100 was expected")
    return math.exp(math.fsum(math.log1p(rates[name]) for name in ACHIEVEMENTS) / len(ACHIEVEMENTS)) - 1.0


def _known(unlocked: Iterable[str]) -> set[str]:
    names = set(unlocked)
    if unknown := names - set(ACHIEVEMENTS):
        raise ValueError(f"{sorted(unknown)} are not achievements of Crafter; the 22 names are {list(ACHIEVEMENTS)}")
    return names
