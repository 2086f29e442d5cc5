"""Formats counts, amounts and shortened text in the same way for every output."""

from __future__ import annotations

import math
from datetime import UTC, datetime

LAST_SECOND = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


def counted(many: int, word: str) -> str:
    """Return a count such as `1 step` or `2 steps`."""
    return f"{many} {word}{'' if many == 1 else 's'}"


def dollars(cost: float) -> str:
    """Format US dollars: `$1,234.50`, `$0.0123`, `$0.000045`, `$0`.

    Amounts from $1 have 2 decimals, amounts from $0.001 have 4, and smaller amounts have 2 significant digits.
    """
    if cost >= 1:
        return f"${cost:,.2f}"
    if cost <= 0:
        return "$0"
    return f"${cost:.4f}" if cost >= 0.001 else f"${cost:.{1 - math.floor(math.log10(cost))}f}"


def cut(text: str, most: int) -> str:
    """Return the text, shortened to at most `most` characters. An ellipsis marks the cut. most: At least 1."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def utc_time(seconds: float) -> datetime:
    """Return the time in UTC, limited to dates that Python supports, because a foreign store may contain any number."""
    return datetime.fromtimestamp(min(max(seconds, 0.0), LAST_SECOND), UTC)
