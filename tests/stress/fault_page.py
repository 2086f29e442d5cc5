"""The generated parts of docs/evaluate/failures.md: the tables of `make faults-proof`."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.tables import Table
from tests.stress.fault_proof import IN_FLIGHT, Result

PAGE = Path(__file__).parents[2] / "docs/evaluate/failures.md"
LEAST = 20_000
"""Rollouts of a run whose tables replace those on the page."""


def table_of(results: Sequence[Result], title: str) -> str:
    """Return the results as a table, with the date and the machine."""
    rows = [_row(result) for result in results]
    total = [str(sum(int(row[column] or 0) for row in rows)) for column in range(1, 7)]
    machine = f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}, Python {platform.python_version()}"
    note = f"{datetime.now(UTC):%d %B %Y}; {IN_FLIGHT} rollouts in flight; {machine}."
    header = ["fault", "faults", "rollouts", "right", "declared", "wrong", "lost", "declared as"]
    return Table(title, header, [*rows, ["**all**", *total, ""]], [note]).markdown()


def _row(result: Result) -> list[str]:
    tally = result.tally
    if result.missing:
        return [result.kind, *[""] * 6, f"not played: {result.missing}"]
    counts = (result.faults, tally.asked, tally.right, tally.declared.total(), tally.wrong, tally.lost)
    codes = ", ".join(f"{count} `{code}`" for code, count in sorted(tally.declared.items()))
    return [result.kind, *map(str, counts), codes]


def write(name: str, text: str) -> None:
    """Replace the part of the page between the markers with this name."""
    begin, end = f"<!-- {name}: written by make faults-proof -->", f"<!-- end of {name} -->"
    page, count = re.subn(
        f"{begin}.*?{end}", lambda _: f"{begin}\n\n{text}\n{end}", PAGE.read_text("utf-8"), flags=re.S
    )
    assert count == 1, f"{PAGE} has no part {name}"
    PAGE.write_text(page, "utf-8")
