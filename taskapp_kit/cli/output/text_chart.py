"""A curve in a terminal, drawn with block characters."""

from __future__ import annotations

import math
from collections.abc import Sequence

CURVE_WIDTH = 72
"""The width of the curve that a command prints at its end, in columns."""
_EIGHTHS = " ▁▂▃▄▅▆▇█"


def curve(values: Sequence[float | None], *, width: int = 60, height: int = 6) -> list[str]:
    """Return the lines of a curve from top to bottom. The list is empty if all values are None.

    The curve is at most `width` columns wide. If there are more values, groups of equal size are averaged. The column of
    an undefined value (None) is empty. The largest and the smallest number are printed on the left.
    """
    columns = _columns(values, width)
    known = [value for value in columns if value is not None]
    if not known:
        return []
    low, high = min(known), max(known)
    span = high - low
    levels = [
        None if value is None else max(1, round((value - low) / span * height * 8) if span else height * 4)
        for value in columns
    ]
    labels = {0: f"{high:.4g}", height - 1: f"{low:.4g}"}
    margin = max(len(label) for label in labels.values())
    lines = []
    for row in range(height):
        floor = (height - 1 - row) * 8
        drawn = "".join(" " if level is None else _EIGHTHS[min(8, max(0, level - floor))] for level in levels)
        lines.append(f"{labels.get(row, ''):>{margin}} │{drawn}")
    return lines


def _columns(values: Sequence[float | None], width: int) -> list[float | None]:
    usable = [value if value is not None and math.isfinite(value) else None for value in values]
    if len(usable) <= width:
        return usable
    columns: list[float | None] = []
    for column in range(width):
        part = [
            value
            for value in usable[column * len(usable) // width : (column + 1) * len(usable) // width]
            if value is not None
        ]
        columns.append(math.fsum(part) / len(part) if part else None)
    return columns
