"""Draws the seeds of a job from the task app's own ranges; the same job and iteration always draw the same seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taskapp_kit.records.seeds import SEED_LIMIT, derived_rng, size

UNKNOWN = range(1000)
"""The range of a task app that does not report its number of tasks."""
MAX_SPLITS, MAX_NAME = 1000, 128
EVALUATION_SPLITS = ("test", "eval", "validation", "val", "dev")


@dataclass(frozen=True, slots=True)
class SeedRange:
    """The seeds of a split. split: its name, "" where the seed alone identifies the task."""

    split: str
    start: int
    stop: int
    step: int = 1

    @property
    def seeds(self) -> range:
        """The seeds."""
        return range(self.start, self.stop, self.step)


def ranges_of(task_info: Any, wanted_split: str | None = None) -> tuple[SeedRange, SeedRange]:
    """Return (train, evaluation) from `GET /task_info`. wanted_split: for both, when the job's env_config names one."""
    described = task_info if isinstance(task_info, Mapping) else {}
    dataset = described.get("taskset") or described.get("dataset")
    dataset = dataset if isinstance(dataset, Mapping) else {}
    by_split = dataset.get("seeds")
    found: dict[str, range] = {}
    for split, bounds in by_split.items() if isinstance(by_split, Mapping) else ():
        read = bounds_of(bounds)
        if read is not None and isinstance(split, str) and len(split) <= MAX_NAME and len(found) < MAX_SPLITS:
            found[split] = read
    if not found:
        count = dataset.get("cardinality")
        whole = range(count) if type(count) is int and 0 < count < SEED_LIMIT else UNKNOWN
        only = SeedRange("", whole.start, whole.stop)
        return only, only
    rows = dataset.get("kind") == "rows"
    default = dataset.get("default_split")
    train = next((name for name in (wanted_split, "train", default) if name in found), next(iter(found)))
    evaluation = next((name for name in (wanted_split, *EVALUATION_SPLITS) if name in found), train)
    made = [
        SeedRange(name if rows and not wanted_split else "", found[name].start, found[name].stop, found[name].step)
        for name in (train, evaluation)
    ]
    return made[0], made[1]


def bounds_of(bounds: Any) -> range | None:
    """Return the seeds of `[start, stop]` or `[start, stop, step]`; None for anything else, and for an empty range."""
    if not isinstance(bounds, list) or len(bounds) not in (2, 3) or any(type(item) is not int for item in bounds):
        return None
    if len(bounds) == 3 and bounds[2] == 0:
        return None
    seeds = range(*bounds)
    return seeds if seeds and min(seeds[0], seeds[-1]) >= 0 and max(seeds[0], seeds[-1]) < SEED_LIMIT else None


def draw(seeds: range, count: int, *purpose: str | int) -> list[int]:
    """Draw `count` seeds; none repeats before all were drawn. purpose: what they are for; it determines the draw."""
    rng = derived_rng("backend seeds", *purpose)
    total = size(seeds)
    drawn: list[int] = []
    while len(drawn) < count:
        missing = count - len(drawn)
        if missing * 2 <= total:  # the range may be too long to shuffle
            chosen: dict[int, None] = {}
            while len(chosen) < missing:
                chosen[rng.randrange(total)] = None
            drawn += [seeds.start + index * seeds.step for index in chosen]
        else:
            indices = list(range(total))
            rng.shuffle(indices)
            drawn += [seeds.start + index * seeds.step for index in indices[:missing]]
    return drawn


def cycled(seeds: Sequence[int], first: int, count: int) -> list[int]:
    """Return `count` seeds of a list that repeats, from index `first` on."""
    return [seeds[(first + offset) % len(seeds)] for offset in range(count)]
