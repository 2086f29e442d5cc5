"""Statistics of many rollouts. Sums are exact (`math.fsum`), so nothing depends on the order in which they finished."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections import Counter
from collections.abc import Mapping
from typing import Any

from taskapp_kit.contract.content import Json
from taskapp_kit.contract.statistics import clustered_standard_error
from taskapp_kit.contract.trajectory import nothing_accepted
from taskapp_kit.evaluate.results import Result

NUMBERS = ("reward", "outcome_score", "events_score", "returned", "length")


class Column:
    """One number of each rollout that has it: 16 bytes a rollout."""

    __slots__ = ("_seeds", "_values")

    def __init__(self) -> None:
        self._values, self._seeds = array("d"), array("q")

    def add(self, value: float | None, seed: int) -> None:
        """Adds the number of one rollout; None is left out."""
        if value is not None:
            self._values.append(value)
            self._seeds.append(seed)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def mean(self) -> float | None:
        """Their mean; None without any."""
        return math.fsum(self._values) / len(self._values) if self._values else None

    @property
    def total(self) -> float:
        """Their sum."""
        return math.fsum(self._values)

    @property
    def standard_error(self) -> float | None:
        """Of the mean. Samples of one seed are not independent, so seeds are counted; None with fewer than two."""
        return clustered_standard_error(self._values, self._seeds)

    def to_json(self) -> dict[str, Json]:
        """The column as a summary contains it."""
        return {"mean": self.mean, "standard_error": self.standard_error, "n": len(self)}


class EvalStatistics:
    """The numbers of an evaluation, collected result by result."""

    def __init__(self) -> None:
        self._columns = {name: Column() for name in NUMBERS}
        self._criteria: dict[str, Column] = {}
        self._metrics: dict[str, Column] = {}
        self._usage: dict[str, Column] = {}
        self._seconds = Column()
        self._failures: Counter[tuple[str, str]] = Counter()
        self._ends: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._without_action = 0
        self._digest = hashlib.sha256()
        self._observation_digest: hashlib._Hash | None = hashlib.sha256()

    def add(self, result: Result) -> None:
        """Adds a result. A failed one is counted by its boundary and enters no mean."""
        self._ends[result.status] += 1
        self._seconds.add(result.seconds, result.seed)
        if result.failed:
            self._failures[result.boundary or "", result.code or ""] += 1
            line = pictured = f"{result.seed} {result.boundary} {result.code}\n"
        else:
            line = f"{result.seed} {result.digest} {result.reward!r}\n"
            pictured = f"{result.seed} {result.observation_digest} {result.reward!r}\n"
            if result.observation_digest is None:
                self._observation_digest = None
        self._digest.update(line.encode())
        if self._observation_digest is not None:
            self._observation_digest.update(pictured.encode())
        if result.failed:
            return
        self._reasons[result.stop_reason or ""] += 1
        self._without_action += nothing_accepted(result.length, result.metrics)
        for name, column in self._columns.items():
            column.add(getattr(result, name), result.seed)
        for columns, values in (
            (self._criteria, result.criteria),
            (self._metrics, result.metrics),
            (self._usage, result.usage),
        ):
            for name, value in values.items():
                columns.setdefault(name, Column()).add(value, result.seed)

    @property
    def finished(self) -> int:
        """The number of rollouts that did not fail."""
        return self._ends.total() - self._ends["failed"]

    def to_json(self, asked: int) -> dict[str, Json]:
        """The summary's numbers; those that differ between two runs of the same evaluation are under `timing`.

        observation_digest: None when a rollout that did not fail has none.
        """
        failures: dict[str, Any] = {}
        for (boundary, code), count in sorted(self._failures.items()):
            failures.setdefault(boundary or "untold", {})[code] = count
        scored = len(self._columns["reward"])
        return {
            "rollouts": {
                "asked": asked,
                "done": self._ends.total(),
                "terminated": self._ends["terminated"],
                "truncated": self._ends["truncated"],
                "failed": self._ends["failed"],
                "scored": scored,
                "undefined": self.finished - scored,
                "without_valid_action": self._without_action,
            },
            **{("return" if name == "returned" else name): column.to_json() for name, column in self._columns.items()},
            "criteria": _as_json(self._criteria),
            "metrics": _as_json(self._metrics),
            "failures": failures,
            "stop_reasons": dict(sorted(self._reasons.items())),
            "usage": {name: self._usage[name].total for name in sorted(self._usage)},
            "digest": self._digest.hexdigest(),
            "observation_digest": None if self._observation_digest is None else self._observation_digest.hexdigest(),
            "timing": {"rollout_seconds": {"mean": self._seconds.mean, "total": self._seconds.total}},
        }


def _as_json(columns: Mapping[str, Column]) -> dict[str, Json]:
    return {name: column.to_json() for name, column in columns.items()}
