"""Tables of the performance page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median


@dataclass(frozen=True)
class Table:
    """One section of the page. `notes` are sentences below it: how it was measured, and each budget: kept or not."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = field(default_factory=list)

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", _line(self.header), _line(["---"] + ["---:"] * (len(self.header) - 1))]
        lines += [_line(row) for row in self.rows]
        for note in self.notes:
            lines += ["", note]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Budget:
    """A budget, the measured value, and whether the budget was met."""

    words: str
    seen: str
    kept: bool

    def sentence(self) -> str:
        return f"{'Met' if self.kept else '**Not met**'}: {self.words}. Measured: {self.seen}."


def middle(values: Sequence[float], digits: int = 2) -> str:
    """The median, and the range of the repetitions in brackets."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
